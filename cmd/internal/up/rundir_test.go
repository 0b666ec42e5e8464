package up

import (
	"os"
	"testing"
)

// TestCommunicatorsOfAnEarlierLifeAreForgotten: a drafter that found one would
// connect to addresses of the dead.
func TestCommunicatorsOfAnEarlierLifeAreForgotten(t *testing.T) {
	root := t.TempDir()
	d, err := openRun(root, "run", intent{})
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{d.join("communicators", "1"): "addresses", d.join("journal", "000001.journal"): "records"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	again, err := openRun(root, "run", intent{resume: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = again.close() }()
	if left, err := os.ReadDir(again.join("communicators")); err != nil || len(left) > 0 {
		t.Errorf("want none left, got %v, %v", left, err)
	}
	if _, err := os.Stat(again.join("journal", "000001.journal")); err != nil {
		t.Errorf("want the journal kept, got %v", err)
	}
}
