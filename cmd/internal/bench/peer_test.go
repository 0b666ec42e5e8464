package bench

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

func TestPeerCheck(t *testing.T) {
	good := Peer{Trainer: "specforge", Checkout: "x", Rows: 8, Batch: 4, Rounds: 2, Deadline: time.Minute}
	if err := good.Check(false); err != nil {
		t.Error(err)
	}
	for says, change := range map[string]func(*Peer){
		"--trainer: want deepspec or specforge": func(p *Peer) { p.Trainer = "" },
		"--checkout":                            func(p *Peer) { p.Checkout = "" },
		"--rows: want a multiple of --batch, at least 1, got 9 and 4": func(p *Peer) { p.Rows = 9 },
		"got 0 and 4":        func(p *Peer) { p.Rows = 0 },
		"got 8 and 0":        func(p *Peer) { p.Batch = 0 },
		"--rounds":           func(p *Peer) { p.Rounds = 0 },
		"--deadline":         func(p *Peer) { p.Deadline = time.Millisecond },
		"--fsdp: want a GPU": func(p *Peer) { p.FSDP = true },
		"--compile: want --trainer deepspec, got specforge": func(p *Peer) { p.Compile = true },
	} {
		bad := good
		change(&bad)
		if err := bad.Check(false); runner.KindOf(err) != runner.Invalid || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: got %v, want %q", bad, err, says)
		}
	}
}

// shell asks a question of a shell script, which stands for a trainer's Python.
func shell(t *testing.T, ctx context.Context, script string, deadline time.Duration) (map[string]int, error) {
	t.Helper()
	p := &Python{interpreter: "/bin/sh", dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(p.dir, "x.sh"), []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	var into map[string]int
	err := p.put(ctx, question{name: "SpecForge", interpreter: "/bin/sh", script: "x.sh", environment: os.Environ(), deadline: deadline, asked: 1}, &into)
	return into, err
}

func TestPut(t *testing.T) {
	for _, c := range []struct {
		name, script string
		kind         runner.Kind
		says, hint   string
	}{
		{"an error that is told", `echo '{"error":{"kind":"exhausted","message":"OutOfMemoryError: CUDA out of memory","hint":""}}'; exit 1`, runner.Exhausted,
			"run SpecForge: OutOfMemoryError: CUDA out of memory", "--batch"},
		{"an error with its own hint", `echo '{"error":{"kind":"exhausted","message":"use device cpu","hint":"--device cuda"}}'; exit 1`, runner.Exhausted, "use device cpu", "--device cuda"},
		{"a crash", `echo "peer: first step" >&2; echo "Fatal Python error" >&2; kill -SEGV $$`, runner.Internal,
			"run SpecForge: want an answer, got signal: segmentation fault (in: first step): Fatal Python error", ""},
		{"an end without a word", `echo "peer: first step" >&2; exit 7`, runner.Internal, "got exit status 7 (in: first step)", ""},
		{"a kill by the system", `kill -KILL $$`, runner.Internal, "signal: killed", "memory"},
		{"an answer that is none", `echo no`, runner.Internal, "read answer of SpecForge", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := shell(t, t.Context(), c.script, time.Minute)
			if runner.KindOf(err) != c.kind || err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(runner.HintOf(err), c.hint) {
				t.Errorf("got %v (%v), hint %q; want %q (%v)", err, runner.KindOf(err), runner.HintOf(err), c.says, c.kind)
			}
		})
	}
	if got, err := shell(t, t.Context(), `echo '{"x":3}'`, time.Minute); err != nil || got["x"] != 3 {
		t.Errorf("an answer: got %v, %v", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := shell(t, ctx, `sleep 100`, time.Minute); runner.KindOf(err) != runner.Canceled {
		t.Errorf("interrupted: got %v", err)
	}
}

// TestPutHang: a trainer that hangs ends with whatever it started, and its last
// word is told.
func TestPutHang(t *testing.T) {
	t.Parallel()
	pid := filepath.Join(t.TempDir(), "pid")
	_, err := shell(t, t.Context(), "echo 'peer: first step' >&2; sleep 1000 & echo $! > "+pid+"; wait", 2*time.Second)
	if runner.KindOf(err) != runner.Unavailable || !strings.Contains(err.Error(), "want an answer within 2s, got none (in: first step)") {
		t.Fatalf("got %v", err)
	}
	text, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	late, tick := time.After(20*time.Second), time.Tick(10*time.Millisecond)
	for alive(strings.TrimSpace(string(text))) {
		select {
		case <-tick:
		case <-late:
			t.Fatal("what it started outlived it")
		}
	}
}

// alive says whether a process runs: one that waits to be reaped does not.
func alive(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestTail(t *testing.T) {
	var kept tail
	for range 300 {
		_, _ = kept.Write(make([]byte, 1<<16))
	}
	_, _ = kept.Write([]byte("end"))
	if len(kept.kept) > 2*keptOutput || !strings.HasSuffix(string(kept.kept), "end") {
		t.Errorf("got %d bytes, want the last %d at least and twice that at most", len(kept.kept), keptOutput)
	}
}

func TestLook(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := func(path, commit, state string) {
		t.Helper()
		c, err := look(t.Context(), path)
		if err != nil || c.Path != path || !strings.HasPrefix(c.Commit, commit) || !strings.Contains(c.State, state) {
			t.Errorf("got %+v, %v; want commit %s, state %s", c, err, commit, state)
		}
	}
	write := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	if _, err := exec.LookPath("git"); err != nil { // an answer too, and all that there is to see here
		at(dir, "none", "not under git: exec: \"git\": executable file not found")
		return
	}
	at(dir, "none", "not under git: fatal: not a git repository")
	t.Run("without git", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		c, err := look(t.Context(), dir)
		if err != nil || c.Commit != "none" || !strings.Contains(c.State, "not under git: exec: \"git\": executable file not found") {
			t.Errorf("got %+v, %v; want no commit, and why", c, err)
		}
	})
	run("init", "-q")
	at(dir, "none", "no commit: ")
	write("a")
	run("add", ".")
	run("commit", "-qm", "x")
	head, err := git(t.Context(), dir, "rev-parse", "HEAD")
	if err != nil || len(head) < 40 {
		t.Fatalf("got %q, %v", head, err)
	}
	at(dir, head, "clean")
	write("b")
	at(dir, head, "dirty: ?? b")
	write("c")
	at(dir, head, "dirty: ?? b and 1 more")
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	at(filepath.Join(dir, "sub"), "none", "a directory of "+dir)
	t.Setenv("PATH", "")
	at(dir, "none", "not under git: ")
	for _, none := range []string{filepath.Join(dir, "gone"), filepath.Join(dir, "a")} {
		if _, err := look(t.Context(), none); runner.KindOf(err) != runner.NotFound {
			t.Errorf("%s: got %v, want not found", none, err)
		}
	}
}

func TestPeerFigures(t *testing.T) {
	round := func(ours, theirs float64) beside {
		return beside{
			ours: steps{about: about{Torch: "2.11", Parameters: 7}, StepMS: ours, AloneMS: ours + 10, PeakBytes: 10 << 30, MatmulTFLOPS: 700, Attention: "flex",
				Seconds: map[string]float64{"first_pass": 4, "oracle": 0.75, "record": 0.25, "second_pass": 2, "build": 16}},
			theirs: peerSteps{about: about{Torch: "2.9", Parameters: 7}, Transformers: "5.8", StepMS: theirs, AloneMS: theirs, PeakBytes: 20 << 30, FirstS: 8, BuildS: 5,
				DenseCalls: -1, Parts: map[string]string{"clipping": "to 1, by it", "its own": "x"}},
		}
	}
	w, peer := named(t, WorkloadW), Peer{Trainer: "specforge", Batch: 4, Rounds: 2}
	r := start("peer")
	last := round(110, 820)
	last.theirs.FirstS, last.theirs.Compiles = 2, 3
	if err := r.peer([]beside{round(90, 780), last}, w, peer, true); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][2]float64{
		"ours: a row, in steps that follow":                             {100, 0},
		"SpecForge: a row, in steps that follow":                        {200, 2}, // a step has 4 rows
		"SpecForge: a row, in a step by itself":                         {200, 200. / 110},
		"SpecForge: a row, in steps that follow one another, slowest":   {820. / 780, 0},
		"SpecForge: peak memory":                                        {20, 2},
		"SpecForge: first step, empty cache":                            {8, 2},
		"SpecForge: first step, cache of the first":                     {2, 0.5},
		"ours: oracle, recording and second pass after it, empty cache": {3, 0},
		"SpecForge: import and build before it":                         {5, 0},
		"SpecForge: compiles in timed steps":                            {3, 0},
	} {
		f := figure(t, r, name)
		ratio := 0.0
		if f.Ratio != nil {
			ratio = *f.Ratio
		}
		if f.Value != want[0] || ratio != want[1] {
			t.Errorf("%s: got %v, ratio %v; want %v", name, f.Value, ratio, want)
		}
	}
	if f := figure(t, r, "SpecForge: context tokens"); *f.Ratio >= 0.51 || *f.Ratio <= 0.49 {
		t.Errorf("tokens: got %+v, ratio %v", f, *f.Ratio)
	}
	if r.Facts["dense calls of flex attention of SpecForge"] == "" || r.Versions["torch of SpecForge"] != "2.9" || r.Facts["trainer"] != "SpecForge, 4 rows a step" {
		t.Errorf("got %v, %v", r.Facts, r.Versions)
	}
	var text strings.Builder
	if err := r.Write(&text); err != nil || !strings.Contains(text.String(), "clipping") || !strings.Contains(text.String(), "to 1, by it") || !strings.Contains(text.String(), "its own") {
		t.Errorf("got %s, %v", text.String(), err)
	}
	other := round(90, 780)
	other.theirs.Parameters = 8
	if err := start("peer").peer([]beside{other}, w, peer, true); runner.KindOf(err) != runner.Invalid {
		t.Errorf("another drafter: got %v", err)
	}
	if err := start("peer").peer([]beside{{}}, w, peer, true); runner.KindOf(err) != runner.Internal {
		t.Errorf("no time: got %v", err)
	}
	if err := start("peer").peer([]beside{round(1, 1)}, w, peer, true); err != nil {
		t.Errorf("one round: got %v", err)
	}
}
