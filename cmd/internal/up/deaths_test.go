package up

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// TestDeathsStayWithTheRun: the next life has the reports of the one before,
// also after a crash in the middle of one, and their number is bounded.
func TestDeathsStayWithTheRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), failuresFile)
	open := func(torn int) *deaths {
		t.Helper()
		d, n, err := openDeaths(path, func(err error) { t.Error(err) })
		if err != nil || n != torn {
			t.Fatalf("%d lines cannot be read, want %d; %v", n, torn, err)
		}
		return d
	}
	report := func(n int) *runner.Failure {
		return &runner.Failure{Worker: runner.Worker{Role: runner.Target}, Generation: runner.Generation(n), Message: fmt.Sprint("death ", n), At: time.Unix(int64(n), 0).UTC()}
	}
	d := open(0)
	d.observe(runner.Event{Name: "step decided"})
	d.observe(runner.Event{Name: "worker died", Failure: report(1)})
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(`{"worker":"target/0","gen`)
	}
	if err != nil || f.Close() != nil {
		t.Fatal(err)
	}
	d = open(1)
	if got := d.with([]runner.Failure{*report(2)}); len(got) != 2 || got[0].Message != "death 1" || got[1].Message != "death 2" {
		t.Errorf("got %+v", got)
	}
	for n := range 3 * keepDeaths {
		d.observe(runner.Event{Failure: report(2 + n)})
		for len(d.queue) > keepDeaths/2 { // the disk keeps up
			time.Sleep(time.Millisecond)
		}
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	d = open(0)
	defer d.close()
	if got := d.with(nil); len(got) != keepDeaths || got[keepDeaths-1].Message != fmt.Sprint("death ", 3*keepDeaths+1) {
		t.Errorf("%d reports are left", len(got))
	}
	if text, err := os.ReadFile(path); err != nil || strings.Count(string(text), "\n") != keepDeaths {
		t.Errorf("the file has %d lines, %v", strings.Count(string(text), "\n"), err)
	}
}
