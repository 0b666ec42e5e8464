// Command summary checks the summary.json of the embedded default against the
// figures that the product promises. It prints one line a figure.
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

type certificate struct {
	Attention          *string  `json:"attention"`
	Buckets            []uint32 `json:"buckets"`
	Graphs             *uint32  `json:"graphs"`
	DenseCalls         *uint64  `json:"dense_calls"`
	SecondPassCompiles *uint32  `json:"second_pass_compiles"`
	Seconds            *float64 `json:"seconds"`
}

type summary struct {
	Steps, Rows, Samples, Tokens *uint64
	LossFirst                    *float64 `json:"loss_first"`
	LossLast                     *float64 `json:"loss_last"`
	AcceptanceBefore             *float64 `json:"acceptance_before"`
	AcceptanceAfter              *float64 `json:"acceptance_after"`
	AcceptanceNonlooping         *float64 `json:"acceptance_nonlooping"`
	LoopingShare                 *float64 `json:"looping_share"`
	TargetTop1                   *float64 `json:"target_top1"`
	Prompts                      *uint64
	Lossless                     *bool
	Speedup                      *float64
	TokensPerS                   *float64 `json:"tokens_per_s"`
	Workers                      []struct {
		Name, Role, Device string
		Generations        uint32
		Certificate        certificate
	}
	Gate struct {
		Width      uint32
		MaxHolders uint32 `json:"max_holders"`
		Sequence   []string
	}
	Arenas []struct {
		Kind     string
		Slots    uint32
		Bytes    uint64
		HandOffs uint64 `json:"hand_offs"`
	}
	Exit *int
}

func main() {
	if err := check(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func check(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var s summary
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	failed := 0
	say := func(ok bool, format string, a ...any) {
		word := "ok  "
		if !ok {
			word = "FAIL"
			failed++
		}
		fmt.Println(word, fmt.Sprintf(format, a...))
	}
	atLeast := func(name string, got *float64, want float64) {
		if got == nil {
			say(false, "%s is missing", name)
			return
		}
		say(*got >= want, "%s %.3f, want at least %g", name, *got, want)
	}
	atLeast("acceptance_after", s.AcceptanceAfter, 4.5)
	atLeast("acceptance_nonlooping", s.AcceptanceNonlooping, 3.5)
	atLeast("target_top1", s.TargetTop1, 0.5)
	atLeast("speedup", s.Speedup, 1)
	atLeast("tokens_per_s", s.TokensPerS, 1)
	say(s.AcceptanceBefore != nil && *s.AcceptanceBefore >= 1 && *s.AcceptanceBefore < 1.5, "acceptance_before %v is about 1", value(s.AcceptanceBefore))
	say(s.LossFirst != nil && s.LossLast != nil && *s.LossLast < *s.LossFirst, "the loss fell: %v to %v", value(s.LossFirst), value(s.LossLast))
	say(s.Lossless != nil && *s.Lossless, "every text equals plain greedy decoding")
	say(s.Prompts != nil && *s.Prompts >= 24, "prompts %v, want at least 24", number(s.Prompts))
	say(s.Prompts != nil && s.LoopingShare != nil && float64(*s.Prompts)*(1-*s.LoopingShare) > 7.5, "looping_share %v leaves at least 8 prompts", value(s.LoopingShare))
	for name, n := range map[string]*uint64{"steps": s.Steps, "rows": s.Rows, "samples": s.Samples, "tokens": s.Tokens} {
		say(n != nil && *n > 0, "%s %v", name, number(n))
	}
	checkWorkers(s, say)
	say(s.Exit != nil && *s.Exit == 0, "exit is 0")
	if failed > 0 {
		return fmt.Errorf("%d of the summary's figures are wrong", failed)
	}
	return nil
}

func checkWorkers(s summary, say func(bool, string, ...any)) {
	roles := map[string]int{}
	for _, w := range s.Workers {
		roles[w.Role]++
		c := w.Certificate
		say(c.Attention != nil && *c.Attention == "sdpa" && len(c.Buckets) > 0 && c.Graphs != nil && c.DenseCalls != nil && *c.DenseCalls == 0 &&
			c.SecondPassCompiles != nil && *c.SecondPassCompiles == 0 && c.Seconds != nil && *c.Seconds > 0, "%s has a whole certificate, generations %d", w.Name, w.Generations)
	}
	say(roles["target"] == 1 && roles["drafter"] == 2, "workers by role: %v", roles)
	say(s.Gate.Width == 1 && s.Gate.MaxHolders == 1 && len(s.Gate.Sequence) >= 3, "gate width %d, at most %d held it, sequence %v", s.Gate.Width, s.Gate.MaxHolders, s.Gate.Sequence)
	say(len(s.Arenas) == 1 && s.Arenas[0].Kind == "memfd" && s.Rows != nil && s.Arenas[0].HandOffs >= *s.Rows, "arenas %+v", s.Arenas)
}

func value(f *float64) any {
	if f == nil {
		return "missing"
	}
	return fmt.Sprintf("%.3f", *f)
}

func number(n *uint64) any {
	if n == nil {
		return "missing"
	}
	return *n
}
