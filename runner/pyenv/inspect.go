package pyenv

import (
	"context"
	"os"
	"path/filepath"
	"strings"
)

// Inspection is what is known of an environment without making it.
type Inspection struct {
	Dir      string
	Problem  string            // "" when it is ready; "absent", "half made: …", "damaged: …", "out of date: …"
	Python   string            // version that it has, or that it would be made from
	Path     string            // of that Python
	Err      error             // no Python fits, or the one named does not do
	Packages map[string]string // normalised name to version, as installed
	Wanted   map[string]string // likewise, as locked; only those needed on every platform
}

// Inspect looks at an environment and changes nothing.
func Inspect(ctx context.Context, s Spec) (Inspection, error) {
	m, err := newMaker(s, func(Progress) {})
	if err != nil {
		return Inspection{}, err
	}
	in := Inspection{Dir: m.dir, Packages: map[string]string{}, Wanted: map[string]string{}}
	for _, r := range m.wanted {
		if !r.Marker {
			in.Wanted[r.Name] = r.Version
		}
	}
	if s.Interpreter != "" {
		return in.existing(ctx, s), nil
	}
	st, problem := verify(m.dir, m.lockSum, m.installerSum)
	if in.Problem = problem; problem == "" {
		in.Python, in.Path = st.Python, filepath.Join(m.dir, "bin", "python")
		in.Packages = st.versions()
		return in, nil
	}
	i, err := findPython(ctx, os.Getenv("PATH"), m.environ)
	if in.Err = err; err == nil {
		in.Python, in.Path = i.version(), i.Path
	}
	return in, nil
}

// existing inspects an interpreter that the user named.
func (in Inspection) existing(ctx context.Context, s Spec) Inspection {
	e, err := useExisting(ctx, s)
	if err != nil {
		in.Err, in.Path = err, s.Interpreter
		return in
	}
	in.Dir, in.Python, in.Path = e.Dir, e.Version, e.Python
	dirs, _ := filepath.Glob(filepath.Join(e.Dir, "lib", "python3."+strings.Split(e.Version, ".")[1], "site-packages", "*.dist-info"))
	for _, d := range dirs {
		if name, version, ok := parseDistInfo(filepath.Base(d)); ok {
			in.Packages[name] = version
		}
	}
	return in
}
