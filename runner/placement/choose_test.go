package placement

import (
	"slices"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner"
)

const gib = 1 << 30

// machine is four GPUs: free, used by a process, used by somebody unseen, split.
func machine() []Found {
	return []Found{
		{Index: 0, UUID: "GPU-aa11", Name: "H200", Bytes: 140 * gib, UsedBytes: gib / 2},
		{Index: 1, UUID: "GPU-bb22", Name: "H200", Bytes: 140 * gib, UsedBytes: 40 * gib, Processes: []int{77}},
		{Index: 2, UUID: "GPU-cc33", Name: "H200", Bytes: 140 * gib, UsedBytes: 2 * gib},
		{Index: 3, UUID: "GPU-dd44", Name: "H200", Bytes: 140 * gib, MIG: true},
	}
}

func TestChoose(t *testing.T) {
	is := func(s string) *string { return &s }
	for name, c := range map[string]struct {
		asked Asked
		want  []string // UUIDs
		err   string
	}{
		"all that are whole":       {Asked{}, []string{"GPU-aa11", "GPU-bb22", "GPU-cc33"}, ""},
		"the free ones first":      {Asked{Visible: is("1,2,0")}, []string{"GPU-aa11", "GPU-bb22", "GPU-cc33"}, ""},
		"by index, in this order":  {Asked{Devices: []string{"2", "0"}}, []string{"GPU-cc33", "GPU-aa11"}, ""},
		"by UUID":                  {Asked{Devices: []string{"GPU-bb22"}}, []string{"GPU-bb22"}, ""},
		"no such GPU":              {Asked{Devices: []string{"0", "9"}}, nil, "workers.devices[1]: want a GPU that this process may use, got 9; there are 0 (GPU-aa11), 1"},
		"one by both names":        {Asked{Devices: []string{"0", "GPU-aa11"}}, nil, "workers.devices[1]: want each GPU once, got GPU 0 again as GPU-aa11"},
		"a split one":              {Asked{Devices: []string{"3"}}, nil, "got GPU 3, which MIG splits"},
		"two visible":              {Asked{Visible: is("2, 0"), AllowBusy: true}, []string{"GPU-cc33", "GPU-aa11"}, ""},
		"visible by UUID's head":   {Asked{Visible: is("GPU-bb")}, []string{"GPU-bb22"}, ""},
		"the list ends at nothing": {Asked{Visible: is("0,9,1")}, []string{"GPU-aa11"}, ""},
		"none visible":             {Asked{Visible: is("")}, nil, ""},
		"minus one":                {Asked{Visible: is("-1")}, nil, ""},
		"a bare head is no name":   {Asked{Visible: is("GPU-")}, nil, ""},
		"named, but hidden":        {Asked{Visible: is("0"), Devices: []string{"1"}}, nil, "got 1; there are 0 (GPU-aa11)"},
		"an instance is visible":   {Asked{Visible: is("MIG-1")}, nil, "CUDA_VISIBLE_DEVICES: want whole GPUs, got MIG-1"},
	} {
		got, err := Choose(machine(), c.asked)
		if c.err != "" {
			if runner.KindOf(err) != runner.Invalid || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: want %q, got %v, %v", name, c.err, got, err)
			}
			continue
		}
		var uuids []string
		for _, g := range got {
			uuids = append(uuids, g.UUID)
		}
		if err != nil || !slices.Equal(uuids, c.want) {
			t.Errorf("%s: want %v, got %v, %v", name, c.want, uuids, err)
		}
	}
}

// TestBusy: a GPU that others use is refused where a worker would be put, and
// only there; allowed, it has the memory that is left.
func TestBusy(t *testing.T) {
	for name, c := range map[string]struct {
		asked Asked
		err   string
	}{
		"the free one first": {Asked{}, ""},
		"a process":          {Asked{Devices: []string{"1"}}, "place target/0 on GPU 1 (GPU-bb22): want one that nobody else uses, but processes [77] use it"},
		"memory alone":       {Asked{Devices: []string{"2"}}, "GPU 2 (GPU-cc33): want one that nobody else uses, but 2048 MiB of its memory are in use"},
		"allowed":            {Asked{Devices: []string{"1"}, AllowBusy: true}, ""},
	} {
		gpus, err := Choose(machine(), c.asked)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Place(Wanted{Targets: 1, Drafters: 1, CUDA: true, GPUs: gpus, Colocate: "true", TargetBytes: gib, DrafterBytes: gib})
		if c.err == "" && err != nil || c.err != "" && (runner.KindOf(err) != runner.Exhausted || !strings.Contains(err.Error(), c.err) || !strings.Contains(runner.HintOf(err), "busy_devices")) {
			t.Errorf("%s: want %q, got %v, hint %q", name, c.err, err, runner.HintOf(err))
		}
	}
	gpus, err := Choose(machine(), Asked{Devices: []string{"1"}, AllowBusy: true})
	if err != nil || gpus[0].Bytes != 100*gib || gpus[0].Busy != "" {
		t.Errorf("allowed: got %+v, %v", gpus, err)
	}
	if found := machine(); found[0].InUse() != "" || found[1].InUse() == "" {
		t.Errorf("in use: got %q, %q", found[0].InUse(), found[1].InUse())
	}
}

// TestAutoPairsOnWhatIsFree: a pair shares the one free GPU rather than wait
// for one that is in use.
func TestAutoPairsOnWhatIsFree(t *testing.T) {
	gpus, err := Choose(machine(), Asked{})
	if err != nil {
		t.Fatal(err)
	}
	w := Wanted{Targets: 1, Drafters: 1, CUDA: true, GPUs: gpus, Colocate: "auto", TargetBytes: gib, DrafterBytes: gib}
	if p, err := Place(w); err != nil || brief(p) != "target/0=GPU-aa11 drafter/0=GPU-aa11" {
		t.Errorf("got %s, %v", brief(p), err)
	}
	w.GPUs[1].Busy = ""
	if p, err := Place(w); err != nil || brief(p) != "target/0=GPU-aa11 drafter/0=GPU-bb22" {
		t.Errorf("two free: got %s, %v", brief(p), err)
	}
}
