package pyenv

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

func TestInspect(t *testing.T) {
	cache := t.TempDir()
	in, err := Inspect(t.Context(), Worker(cache, ""))
	if err != nil || in.Problem != "absent" || in.Err != nil || in.Python == "" || in.Wanted["torch"] != "2.11.0" || len(in.Packages) != 0 {
		t.Errorf("absent: got %+v, %v", in, err)
	}
	if _, err := os.Stat(in.Dir); err == nil {
		t.Error("it was made")
	}
	in, err = Inspect(t.Context(), Worker(cache, filepath.Join(cache, "python")))
	if err != nil || runner.KindOf(in.Err) != runner.NotFound {
		t.Errorf("a named interpreter that is not there: got %+v, %v", in, err)
	}
	e, err := Ensure(t.Context(), Worker("", ""), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for _, interpreter := range []string{"", e.Python} {
		in, err = Inspect(t.Context(), Worker("", interpreter))
		if err != nil || in.Err != nil || in.Problem != "" || in.Python != e.Version || in.Path != e.Python || in.Packages["torch"] != "2.11.0" || in.Packages["msgspec"] != in.Wanted["msgspec"] {
			t.Errorf("ready, interpreter %q: got %+v, %v", interpreter, in, err)
		}
	}
}
