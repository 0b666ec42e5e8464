package pyenv

import (
	"bufio"
	"bytes"
	"regexp"
	"strings"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Requirement is one pinned package of a lock.
type Requirement struct {
	Name    string // normalised: lower case, dashes
	Version string
	Marker  bool // only on some platforms or Python versions
}

var requirementLine = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([A-Za-z0-9.!+_-]+)\s*(;.*?)?\s*\\?$`)

// ParseLock reads the packages of a lock that `uv pip compile` wrote. Every
// line must be a pinned requirement, one of its hashes, or a comment.
func ParseLock(lock []byte) ([]Requirement, error) {
	var out []Requirement
	s := bufio.NewScanner(bytes.NewReader(lock))
	for n := 1; s.Scan(); n++ {
		line := s.Text()
		trimmed := strings.TrimSpace(line)
		if trimmed == "" || strings.HasPrefix(trimmed, "#") || strings.HasPrefix(trimmed, "--hash=sha256:") {
			continue
		}
		m := requirementLine.FindStringSubmatch(line)
		if m == nil {
			return nil, runner.Errorf(runner.Invalid, "read lock: line %d: want NAME==VERSION, got %.80q", n, line)
		}
		out = append(out, Requirement{Name: normalise(m[1]), Version: m[2], Marker: m[3] != ""})
	}
	if err := s.Err(); err != nil {
		return nil, runner.Errorf(runner.Invalid, "read lock: %w", err)
	}
	if len(out) == 0 {
		return nil, runner.Errorf(runner.Invalid, "read lock: want at least one package, got none")
	}
	return out, nil
}

var separators = regexp.MustCompile(`[-_.]+`)

// normalise writes a package's name the way indexes compare it.
func normalise(name string) string {
	return strings.ToLower(separators.ReplaceAllString(name, "-"))
}

// parseDistInfo reads the name and version out of NAME-VERSION.dist-info.
func parseDistInfo(dir string) (name, version string, ok bool) {
	s, ok := strings.CutSuffix(dir, ".dist-info")
	if !ok {
		return "", "", false
	}
	name, version, ok = strings.Cut(s, "-")
	return normalise(name), version, ok && name != "" && version != ""
}
