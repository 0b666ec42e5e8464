package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// dieVariable turns the test's binary into a publisher that is killed.
const dieVariable = "DFLASH_TEST_DIE_AT"

func TestMain(m *testing.M) {
	if at := os.Getenv(dieVariable); at != "" {
		publishAndDie(at, os.Args[1])
	}
	os.Exit(m.Run())
}

// publishAndDie publishes step 8 beside step 7 and has the kernel kill it with
// SIGKILL once so many bytes of the two files are written; at the length of both
// it lives to the end.
func publishAndDie(at, dir string) {
	room, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		panic(err)
	}
	from, err := os.Open(filepath.Join(dir, "source"))
	if err != nil {
		panic(err)
	}
	var f Facts
	b, err := os.ReadFile(filepath.Join(dir, "source.json"))
	if err == nil {
		err = parseFacts(b, &f)
	}
	if err != nil {
		panic(err)
	}
	if _, err := Publish(dir, from, f, &dying{room}); err != nil {
		panic(err)
	}
	os.Exit(0)
}

// dying is a disk that outlives its writer after so many bytes.
type dying struct{ room int64 }

func (d *dying) Copy(to, from *os.File, size uint64) error {
	if int64(size) > d.room {
		err := Disk{}.Copy(to, from, uint64(d.room))
		return errors.Join(err, syscall.Kill(os.Getpid(), syscall.SIGKILL), errors.New("it lives on"))
	}
	d.room -= int64(size)
	return Disk{}.Copy(to, from, size)
}

func (d *dying) Write(to *os.File, b []byte) error {
	if int64(len(b)) > d.room {
		_, err := to.Write(b[:d.room])
		return errors.Join(err, syscall.Kill(os.Getpid(), syscall.SIGKILL), errors.New("it lives on"))
	}
	return Disk{}.Write(to, b)
}

// TestKilledAtAnyByte: a process that is killed by SIGKILL at any byte of
// publishing leaves the checkpoint before it as it was, nothing under the new
// one's name, and nothing that the next life's sweep does not take.
func TestKilledAtAnyByte(t *testing.T) {
	b := safetensors(t, 60, func(m map[string]string, _ map[string]any) { m["step"] = "8" })
	_, next := imageOf(t, 8, b)
	next.Format, next.Step = FactsFormat, 8
	facts := mustJSON(t, next)
	all := int64(len(b) + len(facts))
	stride := int64(7)
	if testing.Short() {
		stride = 211
	}
	points := []int64{int64(len(b)) - 1, int64(len(b)), int64(len(b)) + 1, all - 1, all}
	for at := int64(0); at < all; at += stride {
		points = append(points, at)
	}
	for _, at := range points {
		dir := t.TempDir()
		before, old := imageOf(t, 7, safetensors(t, 60, nil))
		if _, err := Publish(dir, before.ReadOnlyFile(), old, Disk{}); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string][]byte{"source": b, "source.json": facts} {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		c := exec.Command(os.Args[0], dir)
		c.Env = append(os.Environ(), fmt.Sprint(dieVariable, "=", at))
		out, err := c.CombinedOutput()
		var exit *exec.ExitError
		killed := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
		if killed != (at < all) || at == all && err != nil {
			t.Fatalf("at byte %d: %v\n%s", at, err, out)
		}
		want := []string{"step-7"}
		if at == all {
			want = append(want, "step-8")
		}
		left(t, dir, at, want)
	}
	t.Logf("killed at %d bytes of %d", len(points)-1, all)
}

// left wants just these checkpoints, whole, and nothing half-written after a sweep.
func left(t *testing.T, dir string, at int64, want []string) {
	t.Helper()
	got, err := List(dir)
	if err != nil || len(got) != len(want) {
		t.Fatalf("at byte %d: left %+v, %v, want %v", at, got, err, want)
	}
	for i, c := range got {
		if _, err := Verify(c.Path); err != nil || c.Name != want[i] {
			t.Errorf("at byte %d: %s: %v", at, c.Name, err)
		}
	}
	if err := Sweep(dir); err != nil {
		t.Error(err)
	}
	if half, err := filepath.Glob(filepath.Join(dir, ".partial-*")); err != nil || len(half) > 0 {
		t.Errorf("at byte %d: half-written after a sweep: %v, %v", at, half, err)
	}
}

func mustJSON(t *testing.T, f Facts) []byte {
	t.Helper()
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(b, '\n')
}
