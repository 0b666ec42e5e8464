package host

import (
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	"github.com/dflash-runner/dflash-runner/runner/pyenv/pyenvtest"
)

// TestOldHostIsAnsweredByPython gives the transcript's bytes to the same plugin in
// Python, of today's SDK: what it says holds all that was said then, byte for
// byte, so the transcript is a Python plugin's as well. Today's host takes it.
func TestOldHostIsAnsweredByPython(t *testing.T) {
	said, o, q := transcript(t), options(t), frozen()
	o.Seed, o.Python = 7, pyenvtest.Ensure(t).Python
	e, err := Pin(filepath.Join("testdata", "elder.py"))
	if err != nil {
		t.Fatal(err)
	}
	e.Name, e.Config = "elder", map[string]any{"depth": int64(5)}
	p, err := Start(t.Context(), e, o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	answersAsOfOld(t, p, q)
	protocol, err := p.process.client.Client()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := protocol.Dispense(scheduler.PluginName)
	if err != nil {
		t.Fatal(err)
	}
	for _, method := range []string{"Info", "ConfigSchema", "Configure", "Arrange", "Assign", "Place", "OnFailure"} {
		ask, got := frame(said[method+" ask"]), frame{}
		err := raw.(*grpc.ClientConn).Invoke(t.Context(), "/dflash_runner.scheduler.v1.Scheduler/"+method, &ask, &got, grpc.ForceCodec(rawCodec{}))
		if err == nil {
			err = covers(said[method+" reply"], got)
		}
		if err != nil {
			t.Errorf("%s: %v", method, err)
		}
	}
	p.Observe(q.event)
	if text := awaitLog(t, o, "observed "); !strings.Contains(text, "observed 5 worker died") {
		t.Errorf("observe: %s", text)
	}
}
