package arena

import (
	"reflect"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/dflash-runner/dflash-runner/runner"
)

const (
	meminfo = "MemTotal:       8000000 kB\nMemFree:          1000 kB\nMemAvailable:    4000000 kB\n"
	v2Mount = "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"
	v1Mount = "30 31 0:37 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
	noLimit = "9223372036854771712\n"
)

func machine(files map[string]string) fstest.MapFS {
	m := fstest.MapFS{"proc/meminfo": &fstest.MapFile{Data: []byte(meminfo)}}
	for name, text := range files {
		m[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return m
}

func TestReadLimits(t *testing.T) {
	available := Limit{"MemAvailable of /proc/meminfo", 4000000 << 10}
	for name, c := range map[string]struct {
		files map[string]string
		want  []Limit
	}{
		"no cgroups": {nil, nil},
		"v2 without limits": {map[string]string{
			"proc/self/cgroup": "0::/user/app\n", "proc/self/mountinfo": v2Mount,
			"sys/fs/cgroup/user/app/memory.max": "max\n", "sys/fs/cgroup/user/app/memory.current": "100\n",
		}, nil},
		// The parent is tighter: what counts is every level.
		"v2 nested": {map[string]string{
			"proc/self/cgroup": "0::/user/app\n", "proc/self/mountinfo": v2Mount,
			"sys/fs/cgroup/user/app/memory.max": "1000000\n", "sys/fs/cgroup/user/app/memory.current": "400000\n",
			"sys/fs/cgroup/user/app/memory.stat": "anon 300000\ninactive_file 100000\n",
			"sys/fs/cgroup/user/memory.max":      "max\n", "sys/fs/cgroup/user/memory.high": "800000\n",
			"sys/fs/cgroup/user/memory.current": "500000\n",
		}, []Limit{{"/sys/fs/cgroup/user/app/memory.max", 700000}, {"/sys/fs/cgroup/user/memory.high", 300000}}},
		"v2 over its limit": {map[string]string{
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": v2Mount,
			"sys/fs/cgroup/memory.max": "1000\n", "sys/fs/cgroup/memory.current": "5000\n",
		}, []Limit{{"/sys/fs/cgroup/memory.max", 0}}},
		"v1 nested": {map[string]string{
			"proc/self/cgroup": "5:cpu:/other\n4:cpuset,memory:/a/b\n0::/\n", "proc/self/mountinfo": v1Mount,
			"sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "5000\n", "sys/fs/cgroup/memory/a/b/memory.usage_in_bytes": "2000\n",
			"sys/fs/cgroup/memory/a/b/memory.stat":         "inactive_file 1\ntotal_inactive_file 500\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": noLimit, "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "9000\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "90000\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "10000\n",
		}, []Limit{{"/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", 3500}, {"/sys/fs/cgroup/memory/memory.limit_in_bytes", 80000}}},
		// A v1 container without a namespace: the mount shows the tree from the container on.
		"v1 container": {map[string]string{
			"proc/self/cgroup":                           "4:memory:/docker/abc\n",
			"proc/self/mountinfo":                        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "5000\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000\n",
		}, []Limit{{"/sys/fs/cgroup/memory/memory.limit_in_bytes", 4000}}},
		"namespace hides the place": {map[string]string{
			"proc/self/cgroup": "0::/../../outside\n", "proc/self/mountinfo": v2Mount,
			"sys/fs/cgroup/memory.max": "5000\n", "sys/fs/cgroup/memory.current": "1000\n",
		}, []Limit{{"/sys/fs/cgroup/memory.max", 4000}}},
		"a name that only starts alike": {map[string]string{
			"proc/self/cgroup":          "0::/appliance\n",
			"proc/self/mountinfo":       "41 31 0:38 /app /cg rw - cgroup2 cgroup2 rw\n",
			"cg/memory.max":             "5000\n",
			"cg/memory.current":         "1000\n",
			"cg/appliance/memory.max":   "1\n",
			"cg/liance/memory.max":      "1\n",
			"cg/liance/memory.current":  "1\n",
			"cg/appliance/memory.other": "1\n",
		}, []Limit{{"/cg/memory.max", 4000}}},
	} {
		got, err := readLimits(machine(c.files))
		if want := append([]Limit{available}, c.want...); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, want)
		}
	}
	if _, err := readLimits(fstest.MapFS{}); err == nil {
		t.Error("without /proc/meminfo: want an error, got none")
	}
}

func TestJudgeNamesWhatIsShort(t *testing.T) {
	limits := []Limit{{"machine", 1000}, {"cgroup", 400}, {"outer", 900}}
	if err := judge(400, limits); err != nil {
		t.Errorf("just enough: %v", err)
	}
	err := judge(401, limits)
	if err == nil || runner.KindOf(err) != runner.Exhausted || runner.HintOf(err) == "" {
		t.Fatalf("got %v, want kind exhausted with a hint", err)
	}
	for _, part := range []string{"401", "400", "cgroup"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not name %s", err, part)
		}
	}
}

// TestCheckMemoryOfThisMachine: a byte is there, more than any machine has is not.
func TestCheckMemoryOfThisMachine(t *testing.T) {
	if err := CheckMemory(1); err != nil {
		t.Error(err)
	}
	if err := CheckMemory(1 << 60); runner.KindOf(err) != runner.Exhausted || err == nil {
		t.Errorf("got %v, want kind exhausted", err)
	}
	if l, err := Available(); err != nil || l.Have == 0 || l.Where == "" {
		t.Errorf("got %v, %v", l, err)
	}
}
