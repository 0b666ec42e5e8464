package up

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/telemetry"

	"github.com/hashicorp/go-hclog"
)

// TestReleased: memory is back once a sample after the death says so.
func TestReleased(t *testing.T) {
	died := time.Unix(100, 0)
	mib := func(n uint64) *uint64 { n <<= 20; return &n }
	at := func(s int64) *time.Time { x := time.Unix(s, 0); return &x }
	for name, c := range map[string]struct {
		device admin.DeviceStatus
		pid    int
		why    string // empty: released
	}{
		"free":                      {admin.DeviceStatus{At: at(101), MemoryUsedBytes: mib(10), MemoryTotalBytes: mib(100)}, 7, ""},
		"just enough":               {admin.DeviceStatus{At: at(101), MemoryUsedBytes: mib(40), MemoryTotalBytes: mib(100)}, 7, ""},
		"a MiB too little":          {admin.DeviceStatus{At: at(101), MemoryUsedBytes: mib(41), MemoryTotalBytes: mib(100)}, 7, "59 MiB of it are free, and it needs 60 MiB"},
		"a sample from before":      {admin.DeviceStatus{At: at(100), MemoryUsedBytes: mib(10), MemoryTotalBytes: mib(100)}, 7, "not looked at since"},
		"listed still":              {admin.DeviceStatus{At: at(101), MemoryUsedBytes: mib(10), MemoryTotalBytes: mib(100), Processes: []admin.GPUUser{{Pid: 6}, {Pid: 7}}}, 7, "still lists pid 7"},
		"others are listed":         {admin.DeviceStatus{At: at(101), MemoryUsedBytes: mib(10), MemoryTotalBytes: mib(100), Processes: []admin.GPUUser{{Pid: 6}}}, 7, ""},
		"of a pid that none had":    {admin.DeviceStatus{At: at(101), MemoryUsedBytes: mib(10), MemoryTotalBytes: mib(100), Processes: []admin.GPUUser{{Pid: 0}}}, 0, ""},
		"unknown":                   {admin.DeviceStatus{At: at(101), Status: admin.Unknown, Detail: "no answer in time"}, 7, "nothing is known of the GPU: no answer in time"},
		"never seen":                {admin.DeviceStatus{}, 7, "nothing is known"},
		"a driver without a figure": {admin.DeviceStatus{At: at(101)}, 7, ""},
	} {
		ok, why := released(c.device, ended{c.pid, died}, 60<<20)
		if ok != (c.why == "") || !strings.Contains(why, c.why) {
			t.Errorf("%s: got %v, %q, want %q", name, ok, why, c.why)
		}
	}
}

// TestAwait: it waits no longer than it must and no longer than it may, shows
// why, and says when it went on all the same.
func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := telemetry.NewRecorder(t.TempDir()+"/events", hclog.NewNullLogger(), 100)
		if err != nil {
			t.Fatal(err)
		}
		u := &up{phases: map[runner.Worker]string{}, events: r}
		w := runner.Worker{Role: runner.Drafter}
		began := time.Now()
		free := func() (bool, string) {
			if time.Since(began) >= time.Second {
				return true, ""
			}
			if got := u.phases[w]; time.Since(began) > 0 && got != "waits for GPU memory: full" {
				t.Errorf("shown: %q", got)
			}
			return false, "full"
		}
		if err := u.await(t.Context(), w, time.Minute, free); err != nil || time.Since(began) != time.Second {
			t.Errorf("waited %v, %v", time.Since(began), err)
		}
		if len(u.warnings) > 0 || u.phases[w] != "" {
			t.Errorf("left %v, %q", u.warnings, u.phases[w])
		}
		never := func() (bool, string) { return false, "full" }
		began = time.Now()
		if err := u.await(t.Context(), w, time.Minute, never); err != nil || time.Since(began) != time.Minute {
			t.Errorf("waited %v, %v", time.Since(began), err)
		}
		if len(u.warnings) != 1 || u.warnings[0].Detail != "drafter/0 is started again although, 1m0s after its death, full" {
			t.Errorf("told %v", u.warnings)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("the run ends"))
		if err := u.await(ctx, w, time.Minute, never); runner.KindOf(err) != runner.Canceled || !strings.Contains(err.Error(), "the run ends") {
			t.Errorf("got %v", err)
		}
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
