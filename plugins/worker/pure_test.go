package worker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"
)

func TestEnvironment(t *testing.T) {
	for _, c := range []struct {
		name            string
		host, set, want []string
	}{
		{"from nothing", nil, nil, nil},
		{"locale, home and path pass", []string{"LANG=C.UTF-8", "LC_ALL=C", "HOME=/root", "PATH=/bin"}, nil,
			[]string{"HOME=/root", "LANG=C.UTF-8", "LC_ALL=C", "PATH=/bin"}},
		{"libraries pass by prefix", []string{"HF_HOME=/h", "NCCL_DEBUG=INFO", "TORCH_LOGS=x", "TORCHINDUCTOR_CACHE_DIR=/c",
			"TRITON_CACHE_DIR=/t", "NVSHMEM_X=1", "OMP_NUM_THREADS=4", "MKL_X=1", "SSL_CERT_FILE=/s", "https_proxy=p", "NO_PROXY=*"}, nil,
			[]string{"HF_HOME=/h", "MKL_X=1", "NCCL_DEBUG=INFO", "NO_PROXY=*", "NVSHMEM_X=1", "OMP_NUM_THREADS=4", "SSL_CERT_FILE=/s",
				"TORCHINDUCTOR_CACHE_DIR=/c", "TORCH_LOGS=x", "TRITON_CACHE_DIR=/t", "https_proxy=p"}},
		{"what another program set does not", []string{"CUDA_VISIBLE_DEVICES=0", "RANK=1", "WORLD_SIZE=8", "MASTER_ADDR=x",
			"PYTHONPATH=/evil", "LD_PRELOAD=x", "DFLASH_NONCE=n", "PATHOLOGY=1", "DFLASH_RUNNER_WORKER=1"}, nil, nil},
		{"the supervisor wins", []string{"OMP_NUM_THREADS=64", "PATH=/bin"}, []string{"OMP_NUM_THREADS=1", "CUDA_VISIBLE_DEVICES=GPU-1"},
			[]string{"CUDA_VISIBLE_DEVICES=GPU-1", "OMP_NUM_THREADS=1", "PATH=/bin"}},
		{"the last of two counts", []string{"LANG=a", "LANG=b"}, []string{"X=1", "X=2=3"}, []string{"LANG=b", "X=2=3"}},
		{"an empty value stays, a broken entry does not", []string{"HF_TOKEN=", "HOME", "=x", "LANG=a\x00b"}, []string{"Y", "=z"},
			[]string{"HF_TOKEN="}},
	} {
		if got := Environment(c.host, c.set); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestGreeting(t *testing.T) {
	const dir = "/run/d"
	for _, c := range []struct {
		line string
		ok   bool   // has the form
		err  string // part of the refusal, "" for none
	}{
		{"1|1|unix|/run/d/s|grpc", true, ""},
		{"1|1|unix|/run/d/s|grpc||false", true, ""},
		{"1|1|unix|/run/d/s|grpc|\r", true, ""},
		{"2|1|unix|/run/d/s|grpc", true, "core protocol"},
		{"1|3|unix|/run/d/s|grpc", true, "worker protocol version: want 1, got 3"},
		{"1|1|tcp|127.0.0.1:80|grpc", true, "network: want unix"},
		{"1|1|unix|/run/d/../x|grpc", true, "address"},
		{"1|1|unix|/run/dx/s|grpc", true, "address"},
		{"1|1|unix|/run/d/s|netrpc", true, "wire protocol"},
		{"1|1|unix|/run/d/s", false, ""},
		{"a|b|c|d|e", false, ""},
		{"1|1|udp|x|grpc", false, ""},
		{"1|1|unix||grpc", false, ""},
		{"-1|1|unix|/s|grpc", false, ""},
		{"1|99999999999|unix|/s|grpc", false, ""},
		{"1|1|unix|/s|grpc|a|b|c", false, ""},
		{"1|1|unix|" + strings.Repeat("x", 5000) + "|grpc", false, ""},
		{"", false, ""},
	} {
		g, ok := parseGreeting([]byte(c.line))
		if ok != c.ok {
			t.Errorf("%.60q: form %v", c.line, ok)
		}
		if !ok {
			continue
		}
		err := g.check(dir)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%.60q: %v, want %q", c.line, err, c.err)
		}
	}
}

func FuzzGreeting(f *testing.F) {
	for _, s := range []string{"1|1|unix|/run/d/s|grpc", "1|1|unix|/run/d/../../etc|grpc", "|||||", "1|1|unix|/run/d/|grpc|" + strings.Repeat("A", 60)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		g, ok := parseGreeting(line)
		if !ok {
			return
		}
		if g.check("/run/d") == nil && (filepath.Clean(g.Address) + "/")[:len("/run/d/")] != "/run/d/" {
			t.Fatalf("accepted %q outside the directory", g.Address)
		}
	})
}

func TestParseLine(t *testing.T) {
	for _, c := range []struct {
		line    string
		level   hclog.Level
		message string
		fields  string
		trace   int
	}{
		{`{"@level":"info","@message":"ready","@timestamp":"2026-01-02T03:04:05.000000Z","step":7,"dur_ms":1.5}`, hclog.Info, "ready", "[dur_ms 1.5 step 7]", 0},
		{`{"@message":5}`, hclog.Info, "5", "[]", 0},
		{`{"@message":{"a":1},"@level":["x"],"@timestamp":12}`, hclog.Info, `{"a":1}`, "[]", 0},
		{`{"@message":null}`, hclog.Info, "", "[]", 0},
		{`{"@level":"error","@message":"x","traceback":"Traceback\n  File\nE: y\n"}`, hclog.Error, "x", "[]", 3},
		{`{"@message":"x","traceback":["a\nb\n","c"]}`, hclog.Info, "x", "[]", 3},
		{`{"@message":"x","traceback":7}`, hclog.Info, "x", "[traceback 7]", 0},
		{`{"@message":"x","worker":"forged/9","generation":99,"k":[1]}`, hclog.Info, "x", "[k [1]]", 0},
		{"[WARN] careful", hclog.Warn, "careful", "[]", 0},
		{"plain \x1b[31mred", hclog.Debug, `plain \x1b[31mred`, "[]", 0},
		{`{"@message":`, hclog.Debug, `{"@message":`, "[]", 0},
		{"null", hclog.Debug, "null", "[]", 0},
		{"", hclog.Debug, "", "[]", 0},
	} {
		got := parseLine([]byte(c.line))
		if got.Level != c.level || got.Message != c.message || fmt.Sprint(got.Fields) != c.fields || len(got.Traceback) != c.trace {
			t.Errorf("%s: %v %q %v %d", c.line, got.Level, got.Message, got.Fields, len(got.Traceback))
		}
	}
}

// TestKeptLineIsReadable: the report shows a JSON line as words, its traceback apart.
func TestKeptLineIsReadable(t *testing.T) {
	log := &lifeLog{logger: hclog.NewNullLogger()}
	log.stderr([]byte(`{"@level":"error","@message":"a call failed","kind":"invalid","traceback":["Traceback","ValueError: x"]}`), false)
	tail, _, trace := log.kept()
	if len(tail) != 1 || tail[0] != "[ERROR] a call failed kind=invalid" || len(trace.lines) != 2 {
		t.Errorf("kept %q and %q", tail, trace.lines)
	}
}

func FuzzLogLine(f *testing.F) {
	for _, s := range []string{`{"@message": 5}`, `{"@level":["a"]}`, `{"@timestamp":12}`, `{"\u0040message":5}`, ` {"@message":{}}`,
		`[{"@message":1}]`, `{"@message":"ok","k":1e400}`, "Traceback (most recent call last):", "\xff\xfe", `{"traceback":[1,"a"]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		log := &lifeLog{logger: hclog.New(&hclog.LoggerOptions{Output: &bytes.Buffer{}, Level: hclog.Trace, JSONFormat: true})}
		readLines(bytes.NewReader(input), 128, func(line []byte, cut bool) {
			parsed := parseLine(line)
			if len(parsed.Fields) > 2*fieldCount+2 || len(parsed.Message) > 5*messageWidth || !printable(parsed.Message) {
				t.Fatalf("%q gives %+v", line, parsed)
			}
			log.stderr(line, cut)
		})
		tail, _, trace := log.kept()
		if len(tail) > tailLines || len(trace.lines) > tracebackLines {
			t.Fatalf("%d lines, %d of a traceback", len(tail), len(trace.lines))
		}
		for _, l := range append(tail, trace.lines...) {
			if !printable(l) {
				t.Fatalf("kept %q", l)
			}
		}
	})
}

func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r != '\t' && (r < 0x20 || r >= 0x7f && r < 0xa0) })
}

func TestReadLines(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", ""}, {"a\nb", "a;b"}, {"a\n\nb\r\n", "a;;b"},
		{strings.Repeat("x", 16) + "\n", strings.Repeat("x", 16) + "!"}, // the newline did not fit: cut
		{strings.Repeat("x", 15) + "\n", strings.Repeat("x", 15)},
		{strings.Repeat("x", 1000) + "\nb\n", strings.Repeat("x", 16) + "!;b"},
	} {
		var got []string
		readLines(strings.NewReader(c.in), 16, func(l []byte, cut bool) {
			mark := ""
			if cut {
				mark = "!"
			}
			got = append(got, string(l)+mark)
		})
		if s := strings.Join(got, ";"); s != c.want {
			t.Errorf("%.40q: got %q, want %q", c.in, s, c.want)
		}
	}
}

func TestTraceback(t *testing.T) {
	for _, c := range []struct {
		name, in string
		kind     traceKind
		first    string
		last     string
		lines    int
	}{
		{"one exception among noise", "noise\nTraceback (most recent call last):\n  File \"a\", line 1\n    f()\nValueError: x\nafter\n",
			traceException, "Traceback (most recent call last):", "ValueError: x", 4},
		{"a chain is one", "Traceback (most recent call last):\n  File a\nKeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n  File b\nOSError: 2\n",
			traceException, "Traceback (most recent call last):", "OSError: 2", 9},
		{"the last of two counts", "Traceback (most recent call last):\n  File a\nKeyError: 1\nlog\nTraceback (most recent call last):\n  File b\nOSError: 2\n",
			traceException, "Traceback (most recent call last):", "OSError: 2", 3},
		{"a dump of threads is one", "Thread 0x01 (most recent call first):\n  File a\n\nCurrent thread 0x02 (most recent call first):\n  File b\nrest\n",
			traceDump, "Thread 0x01 (most recent call first):", "", 5},
		{"a fatal error", "Fatal Python error: Segmentation fault\n\nCurrent thread 0x02 (most recent call first):\n  File b\n",
			traceDump, "Fatal Python error: Segmentation fault", "", 4},
		{"nothing", "a\nb\n", traceNone, "", "", 0},
	} {
		var f tracebackFinder
		for l := range strings.Lines(c.in) {
			f.feed(strings.TrimSuffix(l, "\n"))
		}
		if f.kind != c.kind || len(f.lines) != c.lines || c.lines > 0 && f.lines[0] != c.first || c.last != "" && lastError(f.lines) != c.last {
			t.Errorf("%s: kind %d, %d lines: %q", c.name, f.kind, len(f.lines), f.lines)
		}
	}
}

func TestTracebackIsBounded(t *testing.T) {
	var f tracebackFinder
	f.feed("Traceback (most recent call last):")
	for i := range 10_000 {
		f.feed(fmt.Sprintf("  line %d %s", i, strings.Repeat("x", 1000)))
	}
	f.feed("RecursionError: too deep")
	if len(f.lines) != tracebackLines || lastError(f.lines) != "RecursionError: too deep" || f.lines[1][:8] != "  line 0" || len(f.lines[5]) > 400 {
		t.Errorf("%d lines, the last %q", len(f.lines), f.lines[len(f.lines)-1])
	}
}

func TestLogFileIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	log, err := openLog(path, 100, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	var told []Cut
	log.onCut = func(x Cut) {
		log.kept() // who is told may ask for the log
		told = append(told, x)
	}
	for i := range 60 {
		log.stderr(fmt.Appendf(nil, "line %d", i), false)
	}
	log.stdout([]byte("noise"), false)
	log.close()
	// lines 0 to 12 fit: ten of 7 bytes, three of 8
	if want := []Cut{{1, 8}, {48, 47*8 + 15}}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
	b, err := os.ReadFile(path)
	if err != nil || len(b) > 200 || !strings.HasPrefix(string(b), "line 0\n") || strings.Count(string(b), "log file full") != 1 || !strings.HasSuffix(string(b), "dflash-runner: 48 lines, 391 bytes were not kept\n") {
		t.Errorf("%v: %q", err, b)
	}
	if tail, _, _ := log.kept(); len(tail) != tailLines || tail[tailLines-1] != "line 59" {
		t.Errorf("kept %d lines", len(tail))
	}
}

// TestLogCutIsToldByTotals: a flood is told of a few times, and its last total is all.
func TestLogCutIsToldByTotals(t *testing.T) {
	log, err := openLog(filepath.Join(t.TempDir(), "log"), 10, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	var told []Cut
	log.onCut = func(x Cut) { told = append(told, x) }
	line := bytes.Repeat([]byte("x"), 1<<10-1)
	for range 12 << 10 {
		log.stderr(line, false)
	}
	log.close()
	log.close()
	if want := []Cut{{1, 1 << 10}, {1 << 10, 1 << 20}, {10 << 10, 10 << 20}, {12 << 10, 12 << 20}}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}

func TestOOM(t *testing.T) {
	for _, c := range []struct {
		name          string
		signal        syscall.Signal
		before, after oomCounters
		want          string
	}{
		{"another signal is none", syscall.SIGSEGV, oomCounters{0, 0}, oomCounters{1, 1}, "no"},
		{"an exit is none", 0, oomCounters{0, 0}, oomCounters{1, 1}, "no"},
		{"the cgroup counted one", syscall.SIGKILL, oomCounters{3, 9}, oomCounters{4, 10}, "yes"},
		{"the machine counted one elsewhere", syscall.SIGKILL, oomCounters{3, 9}, oomCounters{3, 10}, "no"},
		{"no cgroup, the machine counted one", syscall.SIGKILL, oomCounters{-1, 9}, oomCounters{-1, 10}, "yes"},
		{"no cgroup, none counted", syscall.SIGKILL, oomCounters{-1, 9}, oomCounters{-1, 9}, "no"},
		{"nothing can be read", syscall.SIGKILL, oomCounters{-1, -1}, oomCounters{-1, -1}, "unknown"},
	} {
		if got := oomKilled(c.signal, c.before, c.after); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

// TestOOMFiles reads both versions' files, also where the path in /proc lies
// outside of what a container mounts.
func TestOOMFiles(t *testing.T) {
	for _, c := range []struct{ name, cgroup, file, content string }{
		{"version 1", "4:memory:/a\n0::/\n", "sys/fs/cgroup/memory/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"},
		{"version 1 in a container", "4:cpu,memory:/outside\n", "sys/fs/cgroup/memory/memory.oom_control", "oom_kill 7\n"},
		{"version 2", "0::/b\n", "sys/fs/cgroup/b/memory.events", "low 0\noom 9\noom_kill 7\noom_group_kill 1\n"},
		{"version 2 in a container", "0::/outside\n", "sys/fs/cgroup/memory.events", "oom_kill 7\n"},
	} {
		root := t.TempDir()
		write := func(path, content string) {
			path = filepath.Join(root, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("proc/12/cgroup", c.cgroup)
		write("proc/vmstat", "pgfault 5\noom_kill 2\n")
		write(c.file, c.content)
		w := watchOOM(root, 12)
		if w.before != (oomCounters{7, 2}) {
			t.Errorf("%s: %+v", c.name, w)
		}
		write(c.file, strings.Replace(c.content, "oom_kill 7", "oom_kill 8", 1))
		if got := oomKilled(syscall.SIGKILL, w.before, w.read()); got != "yes" {
			t.Errorf("%s: %s", c.name, got)
		}
	}
	if w := watchOOM(t.TempDir(), 12); w.before != (oomCounters{-1, -1}) {
		t.Errorf("nothing there: %+v", w)
	}
}

// TestGoPluginWouldPanic keeps the reason for our own parser: what go-plugin
// asserts about a line is not so for lines that a worker may print.
func TestGoPluginWouldPanic(t *testing.T) {
	var raw map[string]any
	if err := json.Unmarshal([]byte(`{"@message":5}`), &raw); err != nil {
		t.Fatal(err)
	}
	if _, ok := raw["@message"].(string); ok {
		t.Fatal("a number is a string")
	}
}
