package telemetry

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/hashicorp/go-hclog"

	"github.com/dflash-runner/dflash-runner/runner"
)

// maxLine bounds a line of events.jsonl in bytes, its end included.
const maxLine = 256 << 10

// encode gives the event's line. JSON has no NaN and no infinity: figures that
// are not finite are null. An event that is too long keeps all but its failure's texts.
func encode(e runner.Event) ([]byte, error) {
	line, err := marshal(e)
	if err != nil || len(line) <= maxLine {
		return line, err
	}
	e.Message = fmt.Sprintf("%.1000s (cut: the event took %d bytes)", e.Message, len(line))
	e.Hint = fmt.Sprintf("%.1000s", e.Hint)
	if e.Failure != nil {
		f := *e.Failure
		f.Message, f.Hint = fmt.Sprintf("%.1000s", f.Message), fmt.Sprintf("%.1000s", f.Hint)
		f.Stderr, f.Traceback, f.StdoutNoise, f.Kernel = nil, nil, nil, nil
		e.Failure = &f
	}
	return marshal(e)
}

func marshal(e runner.Event) ([]byte, error) {
	type plain runner.Event
	line, err := json.Marshal(struct {
		plain
		Figures map[string]*float64 `json:"figures,omitempty"` // shadows the plain one
	}{plain(e), finite(e.Figures)})
	if err != nil {
		return nil, runner.Errorf(runner.Internal, "encode event %q: %w", e.Name, err)
	}
	return append(line, '\n'), nil
}

func finite(figures map[string]float64) map[string]*float64 {
	out := make(map[string]*float64, len(figures))
	for name, v := range figures {
		out[name] = nil
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			out[name] = &v
		}
	}
	return out
}

// logEvent writes the event as one log line: the name is the message, the rest
// are the fixed keys of the house style, then figures by name.
func logEvent(log hclog.Logger, e runner.Event) {
	log.Log(level(e.Level), e.Name, pairs(e)...)
}

func level(l runner.Level) hclog.Level {
	switch l {
	case runner.Warn:
		return hclog.Warn
	case runner.Alarm:
		return hclog.Error
	}
	return hclog.Info
}

func pairs(e runner.Event) []any {
	var kv []any
	add := func(key string, value any, there bool) {
		if there {
			kv = append(kv, key, value)
		}
	}
	if e.Worker != nil {
		kv = append(kv, "worker", e.Worker.String(), "role", string(e.Worker.Role), "rank", int(e.Worker.Rank))
	}
	add("generation", uint32(e.Generation), e.Generation != 0)
	add("lineage", uint32(e.Lineage), e.Lineage != 0)
	add("step", uint64(e.Step), e.Step != 0)
	add("row", uint64(e.Row), e.Row != 0)
	if f := e.Failure; f != nil {
		add("device", f.Device, f.Device != "")
		kv = append(kv, "cause", string(f.Cause))
		add("err", f.Message, e.Message == "")
	}
	if e.Level == runner.Info || e.Level == "" {
		add("detail", e.Message, e.Message != "")
	} else {
		add("err", e.Message, e.Message != "")
	}
	add("hint", e.Hint, e.Hint != "")
	for _, name := range slices.Sorted(maps.Keys(e.Figures)) {
		kv = append(kv, name, e.Figures[name])
	}
	return kv
}
