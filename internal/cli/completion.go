package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (c *completionCmd) Help() string {
	return `As in ~/.bashrc:  source <(sandboxd completion bash)
In ~/.zshrc:  source <(sandboxd completion zsh)
For fish:  sandboxd completion fish >~/.config/fish/completions/sandboxd.fish`
}

func (c *completionCmd) Run(p Process, k *kong.Kong) error {
	words := vocabulary(k.Model)
	write := map[string]func(io.Writer, []word) error{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}
	return write[c.Shell](p.Stdout, words)
}

// word is a command and what may follow it. It is all that the scripts know: which
// sandboxes there are is the server's to say, and they do not ask it.
type word struct {
	name, help string
	flags      []flag
}

type flag struct {
	name, help string
	takesValue bool
	values     []string // when only these are right
}

// vocabulary reads the grammar, so that no flag is written down twice.
func vocabulary(model *kong.Application) []word {
	var words []word
	for _, node := range model.Children {
		if node.Hidden {
			continue
		}
		w := word{name: node.Name, help: node.Help}
		w.add(node)
		var below []string
		for _, child := range node.Children {
			below = append(below, child.Name)
			w.add(child)
		}
		if below != nil {
			w.flags = append(w.flags, flag{values: below})
		}
		for _, arg := range node.Positional {
			if arg.Enum != "" {
				w.flags = append(w.flags, flag{values: strings.Split(arg.Enum, ",")})
			}
		}
		words = append(words, w)
	}
	return words
}

// add takes over the flags of a command, or of one below it, that it does not have yet.
func (w *word) add(node *kong.Node) {
	for _, group := range node.AllFlags(true) {
		for _, f := range group {
			one := flag{name: "--" + f.Name, help: f.Help, takesValue: !f.IsBool()}
			if f.Enum != "" {
				one.values = strings.Split(f.Enum, ",")
			}
			if !slices.ContainsFunc(w.flags, func(have flag) bool { return have.name == one.name }) {
				w.flags = append(w.flags, one)
			}
		}
	}
}

// names lists the flags of a command, and its fixed arguments.
func (w word) names() []string {
	var list []string
	for _, f := range w.flags {
		if f.name == "" {
			list = append(list, f.values...)
		} else {
			list = append(list, f.name)
		}
	}
	return list
}

func commandNames(words []word) string {
	var names []string
	for _, w := range words {
		names = append(names, w.name)
	}
	return strings.Join(names, " ")
}

// In bash and zsh the flag before the cursor decides first, where it takes one of a
// few values; two commands may differ in them.
func bashCompletion(out io.Writer, words []word) error {
	var b strings.Builder
	b.WriteString("# bash completion of sandboxd\n_sandboxd() {\n\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} list=\n\tCOMPREPLY=()\n" +
		"\tif [ \"$COMP_CWORD\" -eq 1 ]; then\n\t\tCOMPREPLY=($(compgen -W '" + commandNames(words) + "' -- \"$cur\"))\n\t\treturn\n\tfi\n" +
		"\tcase \"${COMP_WORDS[1]} $prev\" in\n")
	valueCases(&b, words, func(values string) string { return "COMPREPLY=($(compgen -W '" + values + "' -- \"$cur\")); return" })
	b.WriteString("\tesac\n\tcase \"${COMP_WORDS[1]}\" in\n")
	for _, w := range words {
		fmt.Fprintf(&b, "\t%s) list='%s' ;;\n", w.name, strings.Join(w.names(), " "))
	}
	b.WriteString("\tesac\n\tCOMPREPLY=($(compgen -W \"$list\" -- \"$cur\"))\n\tcase $cur in -*) ;; *) COMPREPLY+=($(compgen -f -- \"$cur\")) ;; esac\n}\n" +
		"complete -o filenames -F _sandboxd sandboxd\n")
	_, err := io.WriteString(out, b.String())
	return err
}

func valueCases(b *strings.Builder, words []word, then func(values string) string) {
	for _, w := range words {
		for _, f := range w.flags {
			if f.name != "" && f.values != nil {
				fmt.Fprintf(b, "\t'%s %s') %s ;;\n", w.name, f.name, then(strings.Join(f.values, " ")))
			}
		}
	}
}

func zshCompletion(out io.Writer, words []word) error {
	var b strings.Builder
	b.WriteString("#compdef sandboxd\n# zsh completion of sandboxd\n_sandboxd() {\n\tlocal -a commands\n\tif (( CURRENT == 2 )); then\n\t\tcommands=(\n")
	for _, w := range words {
		fmt.Fprintf(&b, "\t\t\t%s\n", quote(strings.ReplaceAll(w.name+":"+w.help, "\n", " ")))
	}
	b.WriteString("\t\t)\n\t\t_describe command commands\n\t\treturn\n\tfi\n\tcase \"$words[2] $words[CURRENT-1]\" in\n")
	valueCases(&b, words, func(values string) string { return "compadd -- " + values + "; return" })
	b.WriteString("\tesac\n\tcase \"$words[2]\" in\n")
	for _, w := range words {
		fmt.Fprintf(&b, "\t%s) compadd -- %s ;;\n", w.name, strings.Join(w.names(), " "))
	}
	b.WriteString("\tesac\n\t[[ $words[CURRENT] == -* ]] || _files\n}\n" +
		"(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\ncompdef _sandboxd sandboxd\n")
	_, err := io.WriteString(out, b.String())
	return err
}

func fishCompletion(out io.Writer, words []word) error {
	var b strings.Builder
	b.WriteString("# fish completion of sandboxd\n")
	for _, w := range words {
		fmt.Fprintf(&b, "complete -c sandboxd -f -n __fish_use_subcommand -a %s -d %s\n", w.name, quote(w.help))
		for _, f := range w.flags {
			line := "complete -c sandboxd -n '__fish_seen_subcommand_from " + w.name + "'"
			switch {
			case f.name == "":
				line += " -f -a " + quote(strings.Join(f.values, " "))
			case f.values != nil:
				line += " -x -l " + f.name[2:] + " -a " + quote(strings.Join(f.values, " ")) + " -d " + quote(f.help)
			case f.takesValue:
				line += " -r -l " + f.name[2:] + " -d " + quote(f.help)
			default:
				line += " -l " + f.name[2:] + " -d " + quote(f.help)
			}
			b.WriteString(line + "\n")
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// quote makes one word of a text, for each of the three shells.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
