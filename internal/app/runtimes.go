package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"sandboxd"
	"sandboxd/internal/catalogue"
	"sandboxd/internal/catalogue/briefing"
	"sandboxd/internal/catalogue/recipe"
	"sandboxd/internal/cli"
)

// checkRuntimes says whether a catalogue is right: each mistake on a line of its own,
// or the entries with the default first.
func checkRuntimes(_ context.Context, p Process, o cli.CheckRuntimesOptions) (right bool, err error) {
	text, err := catalogueText(p, o.File)
	if err != nil {
		return false, err
	}
	entries, problems := catalogue.Check(text)
	if o.JSON {
		return len(problems) == 0, writeCheck(p.Stdout, entries, problems)
	}
	for _, problem := range problems {
		fmt.Fprintf(p.Stderr, "sandboxd: %s\n", problem)
	}
	if len(problems) > 0 {
		return false, nil
	}
	for _, e := range entries {
		what := "finished image " + e.Image
		if e.Builds() {
			what = "built"
		}
		if e.Apps {
			what += ", for apps"
		}
		if e.Alias == catalogue.Default(entries).Alias {
			what += ", the default"
		}
		if _, err := fmt.Fprintf(p.Stdout, "%s: %s\n", e.Alias, what); err != nil {
			return false, err
		}
	}
	return true, nil
}

// writeCheck is the answer as JSON: the aliases in their order, and the problems.
func writeCheck(w io.Writer, entries []catalogue.Entry, problems []catalogue.Problem) error {
	type problem struct {
		Runtime string `json:"runtime,omitempty"`
		Field   string `json:"field,omitempty"`
		Message string `json:"message"`
	}
	answer := struct {
		Runtimes []string  `json:"runtimes"`
		Default  string    `json:"default,omitempty"`
		Problems []problem `json:"problems"`
	}{Runtimes: []string{}, Problems: []problem{}}
	for _, e := range entries {
		answer.Runtimes = append(answer.Runtimes, e.Alias)
		answer.Default = catalogue.Default(entries).Alias
	}
	for _, one := range problems {
		answer.Problems = append(answer.Problems, problem{Runtime: one.Entry, Field: one.Field, Message: one.Text})
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(answer)
}

func catalogueText(p Process, file string) ([]byte, error) {
	var text []byte
	var err error
	if file == "-" {
		// One byte more than is taken, so that what is cut off is not taken for the whole.
		text, err = io.ReadAll(io.LimitReader(p.Stdin, catalogue.MaxText+1))
	} else {
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, sandboxd.Errorf(sandboxd.ClassInvalid, "the catalogue cannot be read: %v", err)
	}
	return text, nil
}

// printRuntimes writes the catalogue that a server of these settings offers, in the form
// that was asked for.
func printRuntimes(_ context.Context, p Process, o cli.PrintRuntimesOptions) error {
	alias := o.Dockerfile + o.Briefing // at most one of them
	entries, err := loadCatalogue(o.CatalogueOptions)
	if err != nil {
		return err
	}
	if entries == nil {
		entries = catalogue.Shipped()
	}
	entries = catalogue.Offered(entries, o.Apps || alias != "")
	entry, known := catalogue.Find(entries, alias)
	if alias != "" && !known {
		return sandboxd.Errorf(sandboxd.ClassNotFound, "the catalogue has no runtime %q", alias).WithHint("sandboxd runtimes print shows it")
	}
	var text string
	switch {
	case o.Object:
		text = string(catalogue.Object(entries)) + "\n"
	case o.Compose:
		text = catalogue.Compose(entries) + "\n"
	case o.Into != "":
		return refresh(o.Into, entries)
	case o.Briefing != "":
		text = briefing.For(entries, alias, briefing.Here{})
	case o.Dockerfile != "":
		spec, err := recipe.For(entry, recipe.Options{BaseImage: o.BaseImage})
		if err != nil {
			return err
		}
		if !spec.Builds() {
			return sandboxd.Errorf(sandboxd.ClassInvalid, "nothing is built for %s: it is the finished image %s", alias, spec.Base)
		}
		text = string(spec.Dockerfile)
	default:
		text = string(catalogue.File(entries, recipe.DefaultBase))
	}
	_, err = io.WriteString(p.Stdout, text)
	return err
}

// refresh writes the catalogue into a compose file. A file that has it is not touched.
func refresh(file string, entries []catalogue.Entry) error {
	old, err := os.ReadFile(file)
	if err != nil {
		return sandboxd.Errorf(sandboxd.ClassInvalid, "the compose file cannot be read: %v", err)
	}
	fresh, err := catalogue.Refresh(file, old, entries)
	if err != nil || bytes.Equal(old, fresh) {
		return err
	}
	if err := os.WriteFile(file, fresh, 0o644); err != nil {
		return sandboxd.Errorf(sandboxd.ClassUnavailable, "the compose file cannot be written: %v", err)
	}
	return nil
}
