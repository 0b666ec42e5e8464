package up

import (
	"testing"

	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// TestPluginTrouble: time that goes by and questions that come are no other
// trouble; a refusal is.
func TestPluginTrouble(t *testing.T) {
	p := admin.PluginStatus{Name: "mine", State: "running", Calls: 5, Refused: 1, Strikes: 1, Last: "late", Waiting: &admin.PluginWait{Question: "arrange", WaitedMS: 7000, DeadlineMS: 25_000, Questions: 1}}
	was := pluginTrouble(&p, "place by mine")
	if want := "plugin mine is running: 1 answers refused, strike 1, ended 0 times, last: late; place by mine"; was != want {
		t.Errorf("want %q, got %q", want, was)
	}
	p.Calls, p.Waiting.WaitedMS = 6, 8000
	if is := pluginTrouble(&p, "place by mine"); is != was {
		t.Errorf("want %q still, got %q", was, is)
	}
	p.Refused++
	if is := pluginTrouble(&p, "place by mine"); is == was {
		t.Errorf("want another text after another refusal, got %q", is)
	}
}
