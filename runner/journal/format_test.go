package journal

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

// TestLaterFormat: a journal of a later version is refused by that name: it is
// neither damaged nor a torn tail that a resume may cut. TestGolden reads
// version 1 as it was kept.
func TestLaterFormat(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("testdata", "format1", segmentName(1)))
	if err != nil {
		t.Fatal(err)
	}
	later := append([]byte("DFJOURN2"), b[8:]...)
	for name, text := range map[string][]byte{"whole": later, "a header alone": later[:headerBytes], "a shorter header": later[:20], "its name alone": later[:8]} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, segmentName(1))
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
			_, _, err := Open(dir, func(Entry) error { return nil })
			if runner.KindOf(err) != runner.Invalid || err == nil || !strings.Contains(err.Error(), `got "dflash-runner-journal/2", which a later version`) || !strings.Contains(runner.HintOf(err), "with the version that wrote it") {
				t.Errorf("got %v, hint %q", err, runner.HintOf(err))
			}
			if now, err := os.ReadFile(path); err != nil || string(now) != string(text) {
				t.Errorf("it was changed: %d bytes of %d, %v", len(now), len(text), err)
			}
		})
	}
}
