package up

import (
	"fmt"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner/config"
)

func TestAbsolute(t *testing.T) {
	t.Chdir("/")
	c := &config.Config{}
	c.Target.Directory, c.Export.Directory, c.Python.Interpreter = "models/m", "/srv/out", "python3"
	c.Data.Files, c.Data.HeldoutFiles, c.Target.Embedded.Corpus.Files = []string{"a.jsonl", "/b.jsonl"}, []string{"../c.jsonl"}, []string{"d.txt"}
	if err := absolute(c); err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(c.Target.Directory, c.Export.Directory, c.Python.Interpreter, c.Drafter.InitFrom, c.Data.Files, c.Data.HeldoutFiles, c.Target.Embedded.Corpus.Files)
	if want := fmt.Sprint("/models/m", "/srv/out", "python3", "", []string{"/a.jsonl", "/b.jsonl"}, []string{"/c.jsonl"}, []string{"/d.txt"}); got != want {
		t.Errorf("want %s, got %s", want, got)
	}
	c.Python.Interpreter = "bin/python"
	if err := absolute(c); err != nil || c.Python.Interpreter != "/bin/python" {
		t.Errorf("want /bin/python, got %s, %v", c.Python.Interpreter, err)
	}
}
