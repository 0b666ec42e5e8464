package pyenv

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// orphaning tells a second process of this test to run a command and be killed.
const orphaning = "PYENV_TEST_ORPHANS"

// TestChildrenDieWithUs: a supervisor that is killed with SIGKILL takes along
// what its children started: ensurepip below venv, and pip below that.
func TestChildrenDieWithUs(t *testing.T) {
	if os.Getenv(orphaning) != "" {
		_, err := command{dir: t.TempDir(), env: os.Environ(), args: []string{"/bin/sh", "-c", "sleep 1000 & echo $!; wait"},
			line: func(s string) { os.Stdout.WriteString("grandchild " + s + "\n") }}.run(t.Context())
		t.Fatalf("not killed: %v", err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestChildrenDieWithUs$")
	cmd.Env = append(os.Environ(), orphaning+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := ""
	for s := bufio.NewScanner(out); pid == "" && s.Scan(); {
		if p, ok := strings.CutPrefix(s.Text(), "grandchild "); ok {
			pid = p
		}
	}
	if err := cmd.Process.Kill(); err != nil || pid == "" {
		t.Fatalf("grandchild %q, %v", pid, err)
	}
	_ = cmd.Wait() // killed
	for deadline := time.Now().Add(10 * time.Second); ; <-time.After(10 * time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + pid + "/stat") // gone, or not reaped yet
		if err != nil || strings.Contains(string(stat), ") Z ") || strings.Contains(string(stat), ") X ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("an orphan runs on: %s", stat)
		}
	}
}
