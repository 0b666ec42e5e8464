package pyenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/python"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/flock"
)

// maker makes one environment.
type maker struct {
	spec         Spec
	dir          string
	lockSum      string
	installerSum string
	wanted       []Requirement
	uv           string // version
	environ      []string
	progress     func(Progress)
}

func newMaker(s Spec, progress func(Progress)) (*maker, error) {
	wanted, err := ParseLock(s.Lock)
	if err != nil {
		return nil, err
	}
	uv, err := ParseLock(python.Installer)
	if err != nil {
		return nil, err
	}
	if s.CacheDir == "" {
		if s.CacheDir, err = DefaultCacheDir(); err != nil {
			return nil, err
		}
	}
	if s.CacheDir, err = filepath.Abs(s.CacheDir); err != nil {
		return nil, runner.Errorf(runner.Invalid, "find cache directory: %w", err)
	}
	parent := filepath.Join(s.CacheDir, "python")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, runner.Errorf(runner.Unavailable, "make cache directory: %w", err).
			WithHint("set XDG_CACHE_HOME to a directory that can be written")
	}
	m := &maker{spec: s, wanted: wanted, uv: uv[0].Version, lockSum: sum(s.Lock), installerSum: sum(python.Installer), progress: progress}
	m.dir = filepath.Join(parent, s.Name+"-"+m.lockSum[:12])
	m.environ = childEnviron(os.Environ())
	if !hasKey(m.environ, "UV_CACHE_DIR") {
		m.environ = append(m.environ, "UV_CACHE_DIR="+filepath.Join(parent, "uv-cache"))
	}
	return m, nil
}

func hasKey(env []string, key string) bool {
	for _, kv := range env {
		if strings.HasPrefix(kv, key+"=") {
			return true
		}
	}
	return false
}

// make builds the environment in place; the stamp makes it valid. problem is
// what is wrong with the one that is there.
func (m *maker) make(ctx context.Context, problem string) error {
	if problem == "absent" {
		m.progress(Progress{Stage: "check", Message: "no environment yet; making " + m.dir})
	} else {
		m.progress(Progress{Stage: "check", Message: m.dir + " is " + problem + "; making it anew"})
	}
	if err := m.room(); err != nil {
		return err
	}
	downloads, err := flock.Open(filepath.Join(filepath.Dir(m.dir), "uv-cache"+flock.Suffix)) // `cache clear` leaves it meanwhile
	if err != nil {
		return err
	}
	defer func() { _ = downloads.Close() }() // and so drops the lock
	if ok, err := downloads.Try(false); err != nil || !ok {
		return errors.Join(err, runner.Errorf(runner.Unavailable, "make environment: uv's cache is being removed").WithHint("try again"))
	}
	base, err := m.base(ctx)
	if err != nil {
		return err
	}
	// The stamp goes first: what a crash leaves behind is then half made.
	if err := os.RemoveAll(filepath.Join(m.dir, stampName)); err != nil {
		return runner.Errorf(runner.Unavailable, "remove environment: %w", err)
	}
	if err := os.RemoveAll(m.dir); err != nil {
		return runner.Errorf(runner.Unavailable, "remove environment: %w", err)
	}
	for _, part := range []func(context.Context, interpreter) error{m.venv, m.installer, m.packages, m.stamp} {
		if err := part(ctx, base); err != nil {
			return err
		}
	}
	m.progress(Progress{Stage: "done", Message: fmt.Sprintf("%s is ready", m.dir)})
	return nil
}

// room refuses to start what the disk cannot hold.
func (m *maker) room() error {
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(m.dir), &fs); err != nil {
		return runner.Errorf(runner.Unavailable, "look for free space: %w", err)
	}
	if free := fs.Bavail * uint64(fs.Bsize); free < m.spec.NeedBytes {
		return runner.Errorf(runner.Exhausted, "make environment: want %d MiB free in %s, got %d", m.spec.NeedBytes>>20, filepath.Dir(m.dir), free>>20).
			WithHint("free some space, or set XDG_CACHE_HOME to a larger disk")
	}
	return nil
}

// base finds the Python to make the environment from.
func (m *maker) base(ctx context.Context) (interpreter, error) {
	if m.spec.Python == "" {
		i, err := findPython(ctx, os.Getenv("PATH"), m.environ)
		if err == nil {
			m.progress(Progress{Stage: "python", Message: fmt.Sprintf("using Python %s (%s)", i.version(), i.Path)})
		}
		return i, err
	}
	i, err := ask(ctx, m.spec.Python, m.environ, withoutPackages)
	if err != nil {
		return i, runner.Errorf(runner.Invalid, "find python: %s: %w", m.spec.Python, err)
	}
	if p := i.unfit() + i.lacks(); p != "" {
		return i, noPython([]string{m.spec.Python + " " + p}, "")
	}
	return i, nil
}

// venv makes the empty environment.
func (m *maker) venv(ctx context.Context, base interpreter) error {
	m.progress(Progress{Stage: "venv", Message: "making the virtual environment"})
	tail, err := command{dir: filepath.Dir(m.dir), env: m.environ, args: []string{base.Path, "-I", "-m", "venv", m.dir}}.run(ctx)
	if err != nil {
		return m.explain("make virtual environment", tail, err).
			WithHint("on Debian and Ubuntu the package python3.%d-venv has what `python -m venv` needs", base.Version[1])
	}
	return nil
}

// installer puts the pinned uv into the environment.
func (m *maker) installer(ctx context.Context, _ interpreter) error {
	m.progress(Progress{Stage: "installer", Message: "installing uv"})
	lock := filepath.Join(m.dir, "installer.lock")
	if err := os.WriteFile(lock, python.Installer, 0o644); err != nil {
		return runner.Errorf(runner.Unavailable, "write installer lock: %w", err)
	}
	py := filepath.Join(m.dir, "bin", "python")
	tail, err := command{dir: m.dir, env: m.environ, args: []string{
		py, "-I", "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--require-hashes", "-r", lock,
	}}.run(ctx)
	if err != nil {
		return m.explain("install uv", tail, err)
	}
	return nil
}

// packages installs everything that the lock names.
func (m *maker) packages(ctx context.Context, _ interpreter) error {
	m.progress(Progress{Stage: "packages", Message: fmt.Sprintf("installing %d packages at most", len(m.wanted))})
	py := filepath.Join(m.dir, "bin", "python")
	lines, err := command{dir: m.dir, env: m.environ, args: []string{py, "-I", "-m", "pip", "config", "list"}}.run(ctx)
	if err != nil {
		return m.explain("read pip's configuration", lines, err)
	}
	lock := filepath.Join(m.dir, "requirements.lock")
	if err := os.WriteFile(lock, m.spec.Lock, 0o644); err != nil {
		return runner.Errorf(runner.Unavailable, "write lock: %w", err)
	}
	d := downloads{progress: m.progress}
	tail, err := command{dir: m.dir, env: withIndex(m.environ, strings.Join(lines, "\n")), line: d.line, args: []string{
		filepath.Join(m.dir, "bin", "uv"), "pip", "install", "--python", py, "--require-hashes", "-r", lock,
	}}.run(ctx)
	if err != nil {
		return m.explain("install packages", tail, err)
	}
	return nil
}

// stamp checks what was installed against the lock and makes it valid.
func (m *maker) stamp(_ context.Context, base interpreter) error {
	s := stamp{
		Format: stampFormat, Lock: m.lockSum, Installer: m.installerSum, Python: base.version(), Machine: runtime.GOARCH, UV: m.uv,
		Site: filepath.Join("lib", fmt.Sprintf("python%d.%d", base.Version[0], base.Version[1]), "site-packages"),
	}
	s.Fingerprint = s.fingerprint()
	if err := s.survey(m.dir); err != nil {
		return runner.Errorf(runner.Unavailable, "check environment: %w", err)
	}
	if missing := m.missing(); len(missing) > 0 {
		return runner.Errorf(runner.Unavailable, "check environment: want all packages of the lock, missing %s", strings.Join(missing, ", "))
	}
	return s.write(m.dir)
}

// missing names the packages of the lock that are not installed. Those with a
// marker may be for other platforms: uv has judged them.
func (m *maker) missing() []string {
	have := map[string]string{}
	dirs, _ := filepath.Glob(filepath.Join(m.dir, "lib", "python3.*", "site-packages", "*.dist-info"))
	for _, d := range dirs {
		if name, version, ok := parseDistInfo(filepath.Base(d)); ok {
			have[name] = version
		}
	}
	var out []string
	for _, r := range m.wanted {
		if v, ok := have[r.Name]; !r.Marker && (!ok || v != r.Version) {
			out = append(out, r.Name+" "+r.Version)
		}
	}
	return out
}

var downloadLine = regexp.MustCompile(`^\s*(Downloading|Downloaded|Building|Built) (\S+)(?: \(([0-9.]+)([KMG]iB)\))?$`)

// downloads follows uv's lines and adds up sizes.
type downloads struct {
	progress    func(Progress)
	size        map[string]uint64
	done, total uint64
}

func (d *downloads) line(s string) {
	if strings.HasPrefix(s, " + ") {
		return // the list of what was installed: the lock says the same
	}
	if m := downloadLine.FindStringSubmatch(s); m != nil {
		if d.size == nil {
			d.size = map[string]uint64{}
		}
		if m[1] == "Downloading" && m[3] != "" {
			f, _ := strconv.ParseFloat(m[3], 64) // digits and dots; "1.2.3" counts as 0
			n := uint64(f * float64(map[string]int{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[m[4]]))
			d.size[m[2]] = n
			d.total += n
		}
		if m[1] == "Downloaded" {
			d.done += d.size[m[2]]
		}
	}
	d.progress(Progress{Stage: "packages", Message: strings.TrimSpace(s), DoneBytes: d.done, TotalBytes: d.total})
}
