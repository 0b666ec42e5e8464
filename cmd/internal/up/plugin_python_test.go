package up

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

// TestScriptIsCheckedBeforeTheEnvironment: one that is required and changed ends
// a run before its Python is made, which would take minutes.
func TestScriptIsCheckedBeforeTheEnvironment(t *testing.T) {
	root := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", filepath.Join(root, "cache"))
	base, err := os.ReadFile("../../../configs/cpu-test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	script, file := filepath.Join(root, "mine.py"), filepath.Join(root, "f.yaml")
	text := string(base) + fmt.Sprintf("\nscheduler:\n  use: mine\n  required: true\n  plugins:\n    - name: mine\n      path: %s\n      sha256: %s\n", script, strings.Repeat("0", 64))
	for path, content := range map[string]string{script: "import dflash_runner\n", file: text} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stderr, err := os.Create(filepath.Join(root, "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	code := Run(t.Context(), Options{ConfigPath: file, Set: []string{"run.directory=" + filepath.Join(root, "runs")}, Stderr: stderr})
	said, err := os.ReadFile(stderr.Name())
	if err != nil || code != runner.ExitPreflight || !strings.Contains(string(said), "plugin mine: check plugin file "+script+": want sha256 0000") {
		t.Errorf("exit %d, said %s, %v", code, said, err)
	}
	if made, _ := filepath.Glob(filepath.Join(root, "cache", "dflash-runner", "python", "*")); len(made) > 0 {
		t.Errorf("made %v", made)
	}
}
