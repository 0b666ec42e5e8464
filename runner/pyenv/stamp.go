package pyenv

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"

	"github.com/dflash-runner/dflash-runner/runner"
)

const (
	stampName   = "dflash-runner.json"
	stampFormat = 1
	maxStamp    = 1 << 20
)

// stamp is what makes an environment valid. It is written last.
type stamp struct {
	Format      int    `json:"format"`
	Fingerprint string `json:"fingerprint"`
	Lock        string `json:"lock_sha256"`
	Installer   string `json:"installer_sha256"`
	Python      string `json:"python"` // version
	Machine     string `json:"machine"`
	UV          string `json:"uv"`
	Base        string `json:"base"` // the interpreter that the venv's links lead to
	BaseBytes   int64  `json:"base_bytes"`
	BaseTime    int64  `json:"base_mtime_ns"`
	Site        string `json:"site_packages"` // relative to the environment
	// Packages: the .dist-info directories and the size of each one's RECORD.
	Packages map[string]int64 `json:"packages"`
	Top      []string         `json:"top"` // what the packages put into Site
}

// fingerprint names everything that an environment's contents follow from.
func (s stamp) fingerprint() string {
	h := sha256.Sum256(fmt.Appendf(nil, "%d\n%s\n%s\n%s\n%s\n%s\n", s.Format, s.Lock, s.Installer, s.Python, s.Machine, s.UV))
	return hex.EncodeToString(h[:])
}

// versions gives the packages by normalised name.
func (s stamp) versions() map[string]string {
	out := map[string]string{}
	for dir := range s.Packages {
		if name, version, ok := parseDistInfo(dir); ok {
			out[name] = version
		}
	}
	return out
}

// sum gives a SHA-256 in hexadecimal.
func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// survey fills in what is found in the environment's directory.
func (s *stamp) survey(dir string) error {
	base, err := filepath.EvalSymlinks(filepath.Join(dir, "bin", "python"))
	if err != nil {
		return err
	}
	info, err := os.Stat(base)
	if err != nil {
		return err
	}
	s.Base, s.BaseBytes, s.BaseTime = base, info.Size(), info.ModTime().UnixNano()
	entries, err := os.ReadDir(filepath.Join(dir, s.Site))
	if err != nil {
		return err
	}
	s.Packages = map[string]int64{}
	top := map[string]bool{}
	for _, e := range entries {
		if _, _, ok := parseDistInfo(e.Name()); !ok {
			continue
		}
		record, err := os.ReadFile(filepath.Join(dir, s.Site, e.Name(), "RECORD"))
		if err != nil {
			return err
		}
		s.Packages[e.Name()] = int64(len(record))
		addTop(top, record)
	}
	for name := range top {
		s.Top = append(s.Top, name)
	}
	slices.Sort(s.Top)
	return nil
}

// addTop collects the first part of each path that a RECORD lists, as far as
// it lies in site-packages.
func addTop(top map[string]bool, record []byte) {
	for sc := bufio.NewScanner(bytes.NewReader(record)); sc.Scan(); {
		path, _, _ := strings.Cut(sc.Text(), ",")
		first, _, _ := strings.Cut(strings.Trim(path, `"`), "/")
		if first != "" && first != ".." && first != "__pycache__" && !strings.HasPrefix(path, "/") {
			top[first] = true
		}
	}
}

// write puts the stamp in place, atomically and durably.
func (s stamp) write(dir string) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(filepath.Join(dir, stampName), append(b, '\n'), 0o644); err != nil {
		return runner.Errorf(runner.Unavailable, "write stamp: %w", err)
	}
	return nil
}

// verify says what is wrong with the environment in dir, or "" and its stamp.
// It reads one small file and calls stat some two hundred times; no process is
// started.
func verify(dir, lock, installer string) (stamp, string) {
	var s stamp
	if _, err := os.Stat(dir); err != nil {
		return s, "absent"
	}
	b, err := os.ReadFile(filepath.Join(dir, stampName))
	if err != nil {
		return s, "half made: it has no stamp"
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil || len(b) > maxStamp || s.Format != stampFormat || s.Fingerprint != s.fingerprint() {
		return s, "damaged: its stamp cannot be read"
	}
	if s.Lock != lock || s.Installer != installer {
		return s, "out of date: the lock has changed"
	}
	return s, s.compare(dir)
}

// compare says what differs between the stamp and the directory. Packages that
// a user added (a tracker, say) are no damage.
func (s stamp) compare(dir string) string {
	base, err := filepath.EvalSymlinks(filepath.Join(dir, "bin", "python"))
	if err != nil {
		return "damaged: its interpreter is gone"
	}
	if info, err := os.Stat(base); err != nil || base != s.Base || info.Size() != s.BaseBytes || info.ModTime().UnixNano() != s.BaseTime {
		return "out of date: the Python that it was made from has changed"
	}
	for name, size := range s.Packages {
		if info, err := os.Stat(filepath.Join(dir, s.Site, name, "RECORD")); err != nil || info.Size() != size {
			return "damaged: " + strings.TrimSuffix(name, ".dist-info") + " is not whole"
		}
	}
	for _, name := range s.Top {
		if _, err := os.Lstat(filepath.Join(dir, s.Site, name)); err != nil {
			return "damaged: " + name + " is missing"
		}
	}
	return ""
}
