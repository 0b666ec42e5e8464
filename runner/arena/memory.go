package arena

import (
	"bufio"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Limit is memory that can still be had, in bytes, and who says so.
type Limit struct {
	Where string
	Have  uint64
}

// CheckMemory refuses need bytes of host memory with kind exhausted when the
// machine, or a cgroup that this process is in, does not have them. It is
// asked before anything is allocated: the kernel answers a cgroup that is full
// by killing, not by an error.
func CheckMemory(need uint64) error {
	limits, err := readLimits(os.DirFS("/"))
	if err != nil {
		return err
	}
	return judge(need, limits)
}

// Available gives the tightest limit.
func Available() (Limit, error) {
	limits, err := readLimits(os.DirFS("/"))
	if err != nil {
		return Limit{}, err
	}
	return tightest(limits), nil
}

func judge(need uint64, limits []Limit) error {
	if l := tightest(limits); l.Have < need {
		return runner.Errorf(runner.Exhausted, "check memory: want %d bytes, got %d (%s)", need, l.Have, l.Where).
			WithHint("choose fewer slots, shorter buckets or fewer workers, or raise the limit")
	}
	return nil
}

// tightest gives the smallest of limits, which are at least one.
func tightest(limits []Limit) Limit {
	least := limits[0]
	for _, l := range limits[1:] {
		if l.Have < least.Have {
			least = l
		}
	}
	return least
}

// readLimits reads what the machine has and what each cgroup on the way from
// this process to the root leaves; root is the file system's root. The machine comes first.
func readLimits(root fs.FS) ([]Limit, error) {
	available, err := readField(root, "proc/meminfo", "MemAvailable:")
	if err != nil {
		return nil, runner.Errorf(runner.Internal, "read available memory: %w", err)
	}
	limits := []Limit{{"MemAvailable of /proc/meminfo", available << 10}}
	for _, g := range findCgroups(root) {
		for dir := g.dir; ; dir = path.Dir(dir) {
			limits = append(limits, g.limits(root, dir)...)
			if dir == g.mount {
				break
			}
		}
	}
	return limits, nil
}

// cgroup is where this process stands in one hierarchy that counts memory.
// Both paths lack the leading slash, as fs.FS wants it.
type cgroup struct {
	mount string // where the hierarchy is mounted
	dir   string // this process's directory, mount itself or below
	v2    bool
}

// findCgroups reads /proc/self: none on a machine without cgroups.
func findCgroups(root fs.FS) []cgroup {
	membership := map[bool]string{} // by v2
	for line := range fileLines(root, "proc/self/cgroup") {
		parts := strings.SplitN(line, ":", 3) // "4:memory:/path", "0::/path"
		switch {
		case len(parts) == 3 && parts[0] == "0" && parts[1] == "":
			membership[true] = parts[2]
		case len(parts) == 3 && contains(parts[1], "memory"):
			membership[false] = parts[2]
		}
	}
	var found []cgroup
	for line := range fileLines(root, "proc/self/mountinfo") {
		before, after, ok := strings.Cut(line, " - ") // "31 23 0:28 root mountpoint options - type source super"
		place, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(place) < 5 || len(kind) < 3 {
			continue
		}
		v2 := kind[0] == "cgroup2"
		own, member := membership[v2]
		if !member || !v2 && (kind[0] != "cgroup" || !contains(kind[2], "memory")) {
			continue
		}
		mount := strings.TrimPrefix(path.Clean(place[4]), "/")
		found = append(found, cgroup{mount: mount, dir: below(mount, place[3], own), v2: v2})
	}
	return found
}

// below gives the directory of cgroup own in a mount that shows the hierarchy
// from top on. In a container whose namespace hides its own place, that is the mount.
func below(mount, top, own string) string {
	rest, ok := strings.CutPrefix(path.Clean(own), strings.TrimSuffix(path.Clean(top), "/"))
	if !ok || strings.HasPrefix(own, "/..") || rest != "" && rest[0] != '/' {
		return mount
	}
	return path.Join(mount, rest)
}

// limits gives what dir leaves: the limit less what is used and could not be
// reclaimed at once. A level without a limit, or one that cannot be read, gives none.
func (g cgroup) limits(root fs.FS, dir string) []Limit {
	files, usage, cache := []string{"memory.limit_in_bytes"}, "memory.usage_in_bytes", "total_inactive_file"
	if g.v2 {
		files, usage, cache = []string{"memory.max", "memory.high"}, "memory.current", "inactive_file"
	}
	used, err := readNumber(root, path.Join(dir, usage))
	if err != nil {
		return nil
	}
	if reclaimable, err := readField(root, path.Join(dir, "memory.stat"), cache); err == nil {
		used -= min(used, reclaimable)
	}
	var found []Limit
	for _, file := range files {
		limit, err := readNumber(root, path.Join(dir, file))
		if err != nil || limit >= 1<<60 { // "max", or what v1 says for none
			continue
		}
		found = append(found, Limit{"/" + path.Join(dir, file), limit - min(limit, used)})
	}
	return found
}

func readNumber(root fs.FS, name string) (uint64, error) {
	b, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(string(bytes.TrimSpace(b)), 10, 64)
}

// readField finds "key value" in a file of such lines.
func readField(root fs.FS, name, key string) (uint64, error) {
	for line := range fileLines(root, name) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == key {
			return strconv.ParseUint(f[1], 10, 64)
		}
	}
	return 0, errors.New(name + ": no " + key)
}

// fileLines yields the lines of a file; of one that is not there, none.
func fileLines(root fs.FS, name string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		b, err := fs.ReadFile(root, name)
		if err != nil {
			return
		}
		for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan() && yield(s.Text()); {
		}
	}
}

// contains says whether a comma-separated list holds word.
func contains(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}
