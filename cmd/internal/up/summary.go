package up

import (
	"encoding/hex"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/core"
)

// summary joins what the loop, the board and the jobs know at the end.
func (u *up) summary(f core.Finish, hint string) admin.Summary {
	u.mu.Lock()
	defer u.mu.Unlock()
	stages, _ := u.board.picture()
	s := admin.Summary{Name: u.dir.name, Exit: f.Code, ExitReason: f.Reason, Hint: hint, Stages: stages, StartedAt: u.started, EndedAt: time.Now(),
		SupervisorPeakBytes: peak(), SupervisorCPUS: cpuSeconds(), SupervisorCPU: u.meter.picture(), Degraded: u.last.Degraded, Export: u.exported, TargetTop1: u.top1,
		Gate: admin.SummaryGate{Width: u.config.WarmUp.Width, Sequence: []runner.Worker{}}}
	s.BlocksPerRow = u.config.Training.Anchors * u.config.Training.DrawsPerRow
	s.Scheduler, s.Plugin = u.config.Scheduler.Use, u.pluginSummary()
	if s.Plugin != nil && s.Plugin.State == admin.PluginRefused {
		s.Scheduler = config.Balanced
	}
	if u.store != nil {
		if c := u.store.last(); c != nil {
			s.Checkpoint = c.name
		}
	}
	v := u.final
	if v == nil {
		return s
	}
	s.Steps, s.Rows, s.Samples, s.Tokens, s.Skipped, s.Lineage = v.Step, v.Rows, v.Samples, v.Tokens, v.Skipped, v.Lineage
	s.Failures = v.Failures
	s.ImageStall, s.Restored = stallOf(v.Stalls), restoredOf(v.Restored)
	if v.Trained {
		s.LossFirst, s.LossLast = &v.LossFirst, &v.LossLast
	}
	for _, st := range stages {
		if st.Name == "train" && st.Seconds > 0 && v.Tokens > 0 {
			rate := float64(v.Tokens-u.tokensBefore) / st.Seconds
			s.TokensPerS = &rate
		}
	}
	chain := v.Chain
	s.Chain = hex.EncodeToString(chain[:])
	s.Gate.MaxHolders = v.Gate.MaxHolders
	for _, l := range v.Gate.Sequence {
		s.Gate.Sequence = append(s.Gate.Sequence, l.Worker)
	}
	for _, w := range v.Workers {
		c := &w.Certificate
		if c.Fingerprint == "" {
			c = nil
		}
		s.Workers = append(s.Workers, admin.SummaryWorker{Name: w.Worker, Role: w.Worker.Role, Device: w.Device, Generations: w.Generation, Certificate: admin.Summarise(c), Usage: seconds(w.Usage.ByName()), Done: w.Done.ByName()})
	}
	for _, a := range v.View.Arenas {
		s.Arenas = append(s.Arenas, admin.SummaryArena{Kind: a.Kind, Slots: len(a.Slots), Bytes: v.ArenaBytes[a.Arena], HandOffs: a.HandOffs})
	}
	evaluations(&s, v.Evaluations)
	return s
}

// evaluations fills in what was measured before and after training.
func evaluations(s *admin.Summary, all []runner.EvaluationRecord) {
	s.HeldoutLoss, _ = heldoutOf(all)
	var before, after, plain *runner.EvaluationRecord
	for i := range all {
		switch e := &all[i]; {
		case e.What == "plain":
			plain = e
		case e.What != "decode" || e.Forwards == 0:
		case e.Step == 0:
			before = e
		default:
			after = e
		}
	}
	if before != nil {
		s.AcceptanceBefore = ratio(before.Tokens, before.Forwards)
	}
	if plain != nil {
		s.PlainTokensPerS = perSecond(plain.Tokens, plain.BusyUS)
	}
	if after == nil {
		return
	}
	s.AcceptanceAfter = ratio(after.Tokens, after.Forwards)
	s.AcceptanceNonlooping = ratio(after.NonLoopingTokens, after.NonLoopingForwards)
	share := float64(after.Looping) / float64(max(1, after.Prompts))
	s.LoopingShare, s.Prompts, s.PromptsNonlooping = &share, after.Prompts, after.Prompts-after.Looping
	lossless := after.Lossless
	s.Lossless = &lossless
	s.DecodeTokensPerS = perSecond(after.Tokens, after.BusyUS)
	if plain != nil && plain.Prompts == after.Prompts { // the same texts
		s.Speedup = ratio(plain.BusyUS, after.BusyUS)
	}
}

func seconds(of map[string]time.Duration) map[string]float64 {
	out := map[string]float64{}
	for name, d := range of {
		out[name] = d.Seconds()
	}
	return out
}

func ratio(a, b uint64) *float64 {
	if b == 0 {
		return nil
	}
	v := float64(a) / float64(b)
	return &v
}

func perSecond(n, us uint64) *float64 {
	if us == 0 {
		return nil
	}
	v := float64(n) / (float64(us) / 1e6)
	return &v
}
