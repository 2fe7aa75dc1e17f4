package beneath

import (
	"strings"

	"sandboxd"
)

// NameMax is the longest name of one entry, in bytes.
const NameMax = 255

// PathMax is the longest path that is accepted, in bytes.
const PathMax = 4095

// Clean is the one judge of a path that came from outside. It answers the path
// relative to the workspace, without empty, "." and ".." segments; "." is the
// workspace itself. ".." is taken lexically, so that the answer does not depend
// on what links the sandbox has planted. Every refusal is ClassInvalid.
func Clean(path string) (string, error) {
	if len(path) > PathMax {
		return "", sandboxd.Invalid("path", "it is longer than %d bytes", PathMax)
	}
	if strings.IndexByte(path, 0) >= 0 {
		return "", sandboxd.Invalid("path", "it contains a NUL byte")
	}
	if strings.HasPrefix(path, "/") {
		rel, ok := underWorkDir(path)
		if !ok {
			return "", sandboxd.Invalid("path", "an absolute path must be under %s", sandboxd.WorkDir)
		}
		path = rel
	}
	kept := make([]string, 0, 8)
	for name := range strings.SplitSeq(path, "/") {
		switch {
		case name == "" || name == ".":
		case name == "..":
			if len(kept) == 0 {
				return "", sandboxd.Invalid("path", "it leaves the workspace by '..'")
			}
			kept = kept[:len(kept)-1]
		case len(name) > NameMax:
			return "", sandboxd.Invalid("path", "a name in it is longer than %d bytes", NameMax)
		default:
			kept = append(kept, name)
		}
	}
	if len(kept) == 0 {
		return ".", nil
	}
	return strings.Join(kept, "/"), nil
}

// underWorkDir strips the place where a sandbox sees its workspace from an
// absolute path.
func underWorkDir(path string) (string, bool) {
	path = "/" + strings.TrimLeft(path, "/")
	rel, ok := strings.CutPrefix(path, sandboxd.WorkDir)
	if !ok || rel != "" && rel[0] != '/' {
		return "", false
	}
	return rel, true
}

// Split parts a cleaned path into its directory and its last name.
func Split(path string) (dir, name string) {
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		return ".", path
	}
	return path[:i], path[i+1:]
}
