package worker_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/dflash-runner/dflash-runner/plugins/worker"
	"github.com/dflash-runner/dflash-runner/plugins/worker/workertest"
	workerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/worker/v1"
)

// flexed makes a certificate, and what it is of, one of compiled kernels.
func flexed(c *workerv1.Certificate, cfg *workerv1.Configuration) {
	cfg.Attention, cfg.Training.ComputeDtype, c.DenseTolerance = "flex", "bfloat16", 5e-2
	c.Attention, c.Kernels, c.Cache = "flex", []string{"triton_tem_fused_flex_attention_0", "triton_tem_fused_flex_attention_backward_2"}, "cold"
	c.Graphs, c.FirstPassCompiles, c.CacheMisses = proto.Uint32(3), proto.Uint32(4), proto.Uint32(6)
}

// tiled makes a target's certificate, and what it is of, one of compiled kernels: its rows have no backward.
func tiled(c *workerv1.Certificate, cfg *workerv1.Configuration) {
	cfg.Attention, cfg.Target.Dtype, c.DenseTolerance = "flex", "bfloat16", 0.12
	c.Attention, c.Kernels, c.Cache = "flex", []string{"triton_tem_fused_flex_attention_0"}, "cold"
	c.Graphs, c.FirstPassCompiles, c.CacheMisses = proto.Uint32(15), proto.Uint32(10), proto.Uint32(15)
}

// eighted makes a certificate, and what it is of, one of products in fp8.
func eighted(c *workerv1.Certificate, cfg *workerv1.Configuration) {
	cfg.Drafter.Precision, c.Precision = "fp8", "fp8"
	c.LinearProducts, c.HeadProducts = proto.Uint64(2*9*3*2*2), proto.Uint64(3*2*2*2) // layers, calls, products, buckets, passes; three chunks
	c.ProductKernels = []string{"_scaled_mm", "linear"}
}

// falsify names what must be refused: every field, missing and false.
var falsify = []struct {
	field  string
	kind   string // of attention, flex of a drafter or of rows alone, or fp8; empty: all
	change func(*workerv1.Certificate)
}{
	{"fingerprint", "", func(c *workerv1.Certificate) { c.Fingerprint = "" }},
	{"fingerprint", "", func(c *workerv1.Certificate) { c.Fingerprint = strings.Repeat("g", 64) }},
	{"attention", "", func(c *workerv1.Certificate) { c.Attention = "" }},
	{"attention", "sdpa", func(c *workerv1.Certificate) { c.Attention = "flex" }},
	{"buckets", "", func(c *workerv1.Certificate) { c.Buckets = nil }},
	{"buckets", "", func(c *workerv1.Certificate) { c.Buckets = []uint32{128} }},
	{"buckets", "", func(c *workerv1.Certificate) { c.Buckets = []uint32{256, 128} }},
	{"passes", "", func(c *workerv1.Certificate) { c.Passes = 1 }},
	{"graphs", "sdpa", func(c *workerv1.Certificate) { c.Graphs = proto.Uint32(1) }},
	{"graphs", "flex", func(c *workerv1.Certificate) { c.Graphs = proto.Uint32(0) }},
	{"graphs", "flex", func(c *workerv1.Certificate) { c.Graphs = proto.Uint32(1) }},
	{"cache", "", func(c *workerv1.Certificate) { c.Cache = "" }},
	{"cache", "sdpa", func(c *workerv1.Certificate) { c.Cache = "cold" }},
	{"cache", "flex", func(c *workerv1.Certificate) { c.Cache = "none" }},
	{"cache_hits", "sdpa", func(c *workerv1.Certificate) { c.CacheHits = proto.Uint32(1) }},
	{"cache_hits", "flex", func(c *workerv1.Certificate) { c.Cache, c.CacheMisses = "warm", proto.Uint32(0) }},
	{"cache_misses", "sdpa", func(c *workerv1.Certificate) { c.CacheMisses = proto.Uint32(1) }},
	{"cache_misses", "flex", func(c *workerv1.Certificate) { c.CacheMisses = proto.Uint32(0) }},
	{"seconds", "", func(c *workerv1.Certificate) { c.Seconds = nil }},
	{"seconds of total", "", func(c *workerv1.Certificate) { c.Seconds["total"] = 0 }},
	{"seconds of oracle", "", func(c *workerv1.Certificate) { delete(c.Seconds, "oracle") }},
	{"seconds of record", "", func(c *workerv1.Certificate) { delete(c.Seconds, "record") }},
	{"seconds of build", "", func(c *workerv1.Certificate) { c.Seconds["build"] = -1 }},
	{"seconds of build", "", func(c *workerv1.Certificate) { c.Seconds["build"] = math.NaN() }},
	{"kernels", "", func(c *workerv1.Certificate) { c.Kernels = nil }},
	{"kernels", "", func(c *workerv1.Certificate) { c.Kernels = append(c.Kernels, "math") }},
	{"kernels", "flex", func(c *workerv1.Certificate) { c.Kernels = []string{"scaled_dot_product_attention"} }},
	{"kernels", "flex", func(c *workerv1.Certificate) { c.Kernels = nil }},
	{"kernels", "drafter", func(c *workerv1.Certificate) { c.Kernels = c.Kernels[:1] }},
	{"kernels", "drafter", func(c *workerv1.Certificate) { c.Kernels = c.Kernels[1:] }},
	{"kernels", "rows", func(c *workerv1.Certificate) {
		c.Kernels = append(slices.Clone(c.Kernels), "triton_tem_fused_flex_attention_backward_2")
	}},
	{"kernels", "flex", func(c *workerv1.Certificate) { c.Kernels = append(slices.Clone(c.Kernels), "sdpa_dense") }},
	{"attention_calls", "", func(c *workerv1.Certificate) { c.AttentionCalls-- }},
	{"attention_calls", "", func(c *workerv1.Certificate) { c.AttentionCalls = 0 }},
	{"dense_calls", "", func(c *workerv1.Certificate) { c.DenseCalls = proto.Uint64(1) }},
	{"first_pass_compiles", "sdpa", func(c *workerv1.Certificate) { c.FirstPassCompiles = proto.Uint32(1) }},
	{"first_pass_compiles", "flex", func(c *workerv1.Certificate) { c.FirstPassCompiles = proto.Uint32(0) }},
	{"first_pass_compiles", "flex", func(c *workerv1.Certificate) { c.FirstPassCompiles = proto.Uint32(1) }},
	{"second_pass_compiles", "", func(c *workerv1.Certificate) { c.SecondPassCompiles = proto.Uint32(1) }},
	{"peak_bytes", "", func(c *workerv1.Certificate) { c.PeakBytes = 0 }},
	{"step_ms", "", func(c *workerv1.Certificate) { c.StepMs = 0 }},
	{"step_ms", "", func(c *workerv1.Certificate) { c.StepMs = math.Inf(1) }},
	{"step_ms", "", func(c *workerv1.Certificate) { c.StepMs = math.NaN() }},
	{"digest_before", "", func(c *workerv1.Certificate) { c.DigestBefore = nil }},
	{"digest_before", "", func(c *workerv1.Certificate) { c.DigestBefore, c.DigestAfter = make([]byte, 32), make([]byte, 32) }},
	{"digest_after", "", func(c *workerv1.Certificate) { c.DigestAfter = c.DigestAfter[:31] }},
	{"digest_after", "", func(c *workerv1.Certificate) {
		c.DigestAfter = append([]byte{c.DigestAfter[0] ^ 1}, c.DigestAfter[1:]...)
	}},
	{"dense_difference", "sdpa", func(c *workerv1.Certificate) { c.DenseDifference = proto.Float64(1e-3) }},
	{"dense_difference", "", func(c *workerv1.Certificate) { c.DenseDifference = proto.Float64(math.NaN()) }},
	{"dense_difference", "", func(c *workerv1.Certificate) { c.DenseDifference = proto.Float64(-1) }},
	{"dense_tolerance", "", func(c *workerv1.Certificate) { c.DenseTolerance = 0 }},
	{"dense_tolerance", "sdpa", func(c *workerv1.Certificate) { c.DenseTolerance = 0.01 }},
	{"dense_tolerance", "drafter", func(c *workerv1.Certificate) { c.DenseTolerance = 0.051 }},
	{"dense_tolerance", "rows", func(c *workerv1.Certificate) { c.DenseTolerance = 0.151 }},
	{"dense_difference", "rows", func(c *workerv1.Certificate) { c.DenseDifference = proto.Float64(0.121) }},
	{"device", "", func(c *workerv1.Certificate) { c.Device = "" }},
	{"device", "", func(c *workerv1.Certificate) { c.Device = "cuda:0" }},
	{"torch", "", func(c *workerv1.Certificate) { c.Torch = "" }},
	{"environment", "", func(c *workerv1.Certificate) { c.Environment = nil }},
	{"environment", "flex", func(c *workerv1.Certificate) { c.Environment["TORCH_COMPILE_DISABLE"] = "1" }},
	{"environment", "flex", func(c *workerv1.Certificate) { c.Environment["TORCHDYNAMO_DISABLE"] = "1" }},
	{"attention", "flex", func(c *workerv1.Certificate) { c.Attention = "sdpa" }},
	{"dense_difference", "drafter", func(c *workerv1.Certificate) { c.DenseDifference = proto.Float64(0.06) }},
	{"precision", "", func(c *workerv1.Certificate) { c.Precision = "fp16" }},
	{"precision", "flex", func(c *workerv1.Certificate) { c.Precision = "fp8" }},
	{"precision", "fp8", func(c *workerv1.Certificate) { c.Precision = "compute_dtype" }},
	{"linear_products", "sdpa", func(c *workerv1.Certificate) { c.LinearProducts = proto.Uint64(216) }},
	{"linear_products", "fp8", func(c *workerv1.Certificate) { c.LinearProducts = proto.Uint64(0) }},
	{"linear_products", "fp8", func(c *workerv1.Certificate) { c.LinearProducts = proto.Uint64(213) }}, // one layer's call was another product
	{"head_products", "sdpa", func(c *workerv1.Certificate) { c.HeadProducts = proto.Uint64(8) }},
	{"head_products", "fp8", func(c *workerv1.Certificate) { c.HeadProducts = proto.Uint64(0) }},
	{"head_products", "fp8", func(c *workerv1.Certificate) { c.HeadProducts = proto.Uint64(7) }},
	{"product_kernels", "flex", func(c *workerv1.Certificate) {
		c.ProductKernels = []string{"nvjet_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT"}
	}},
	{"product_kernels", "fp8", func(c *workerv1.Certificate) {
		c.ProductKernels = []string{"nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NTT"}
	}},
	{"gradients", "", func(c *workerv1.Certificate) { c.Gradients = proto.Bool(!c.GetGradients()) }},
	{"padded_anchors", "", func(c *workerv1.Certificate) { c.PaddedAnchors = proto.Bool(!c.GetPaddedAnchors()) }},
}

// certified gives a good certificate, and what it is of.
func certified(role workerv1.Role, kind string) (*workerv1.Certificate, *workerv1.Configuration) {
	cfg := workertest.Configuration(role, 0, 1)
	c := workertest.Certificate(cfg, "cpu")
	switch kind {
	case "flex":
		if role == workerv1.Role_ROLE_TARGET {
			tiled(c, cfg)
		} else {
			flexed(c, cfg)
		}
	case "fp8":
		eighted(c, cfg)
	}
	return c, cfg
}

// subjects are whose certificates there are: nothing of a target is in fp8.
var subjects = []struct {
	role workerv1.Role
	kind string
}{{workerv1.Role_ROLE_TARGET, "sdpa"}, {workerv1.Role_ROLE_TARGET, "flex"}, {workerv1.Role_ROLE_DRAFTER, "sdpa"}, {workerv1.Role_ROLE_DRAFTER, "flex"}, {workerv1.Role_ROLE_DRAFTER, "fp8"}}

func TestCertificate(t *testing.T) {
	for _, s := range subjects {
		good, cfg := certified(s.role, s.kind)
		kept, err := worker.Check(good, cfg, "cpu")
		if err != nil || kept.Fingerprint != good.Fingerprint || kept.StepMS != good.StepMs || len(kept.Buckets) != 2 ||
			kept.Graphs != good.GetGraphs() || kept.Precision != good.Precision || kept.FP8Products != good.GetLinearProducts()+good.GetHeadProducts() || kept.DenseDifference != good.GetDenseDifference() {
			t.Fatalf("%+v: %v: %+v", s, err, kept)
		}
		for _, f := range falsify {
			flexOf := map[workerv1.Role]string{workerv1.Role_ROLE_TARGET: "rows", workerv1.Role_ROLE_DRAFTER: "drafter"}[s.role]
			if f.kind != "" && f.kind != s.kind && !(s.kind == "flex" && f.kind == flexOf) {
				continue
			}
			bad := proto.Clone(good).(*workerv1.Certificate)
			f.change(bad)
			if _, err := worker.Check(bad, cfg, "cpu"); err == nil || !strings.Contains(err.Error(), "check certificate: "+f.field) {
				t.Errorf("%+v: false %s: %v", s, f.field, err)
			}
		}
	}
}

// TestNoFieldMayBeLeftOut: each of them, of each worker, a zero that would have
// been right included. Without fp8 no kernel of a product need be seen.
func TestNoFieldMayBeLeftOut(t *testing.T) {
	for _, s := range subjects {
		good, cfg := certified(s.role, s.kind)
		fields := good.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			if s.kind != "fp8" && fields.Get(i).Name() == "product_kernels" {
				continue
			}
			bad := proto.Clone(good).(*workerv1.Certificate)
			bad.ProtoReflect().Clear(fields.Get(i))
			want := "check certificate: " + string(fields.Get(i).Name())
			if _, err := worker.Check(bad, cfg, "cpu"); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: no %s: %v", s, fields.Get(i).Name(), err)
			}
		}
	}
}

// TestAWarmCertificate: everything came from the cache, and nothing else did.
func TestAWarmCertificate(t *testing.T) {
	c, cfg := certified(workerv1.Role_ROLE_DRAFTER, "flex")
	c.Cache, c.CacheHits, c.CacheMisses = "warm", proto.Uint32(6), proto.Uint32(0)
	if kept, err := worker.Check(c, cfg, "cpu"); err != nil || kept.Cache != "warm" {
		t.Errorf("%v: %+v", err, kept)
	}
	c.CacheMisses = proto.Uint32(1)
	if _, err := worker.Check(c, cfg, "cpu"); err == nil || !strings.Contains(err.Error(), "cache_misses: want 0 where warm, got 1") {
		t.Errorf("warm with a miss: %v", err)
	}
}

// TestEveryFieldIsChecked: a field that is added to the schema must be falsified
// here too.
func TestEveryFieldIsChecked(t *testing.T) {
	fields := (&workerv1.Certificate{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		name, found := string(fields.Get(i).Name()), false
		for _, f := range falsify {
			found = found || f.field == name
		}
		if !found {
			t.Errorf("no test falsifies %s", name)
		}
	}
}

func TestCertificateAgainstConfiguration(t *testing.T) {
	for name, change := range map[string]func(*workerv1.Configuration){
		"role":        func(c *workerv1.Configuration) { c.Role = 0 },
		"layers":      func(c *workerv1.Configuration) { c.Drafter.Layers = 3 },
		"dtype":       func(c *workerv1.Configuration) { c.Training.ComputeDtype = "float16" },
		"attention":   func(c *workerv1.Configuration) { c.Attention = "dense" },
		"no training": func(c *workerv1.Configuration) { c.Training = nil },
	} {
		cfg := workertest.Configuration(workerv1.Role_ROLE_DRAFTER, 0, 1)
		c := workertest.Certificate(cfg, "cpu")
		change(cfg)
		if _, err := worker.Check(c, cfg, "cpu"); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := worker.Check(nil, workertest.Configuration(2, 0, 1), "cpu"); err == nil {
		t.Error("no certificate: accepted")
	}
}

// TestFP8IsForDrafters: a target is told the drafter's precision as well, and computes as ever; a drafter that
// does, although it was asked for fp8, is refused, and the other way round.
func TestFP8IsForDrafters(t *testing.T) {
	c, cfg := certified(workerv1.Role_ROLE_TARGET, "sdpa")
	cfg.Drafter.Precision = "fp8"
	if kept, err := worker.Check(c, cfg, "cpu"); err != nil || kept.Precision != "compute_dtype" || kept.FP8Products != 0 {
		t.Errorf("%v: %+v", err, kept)
	}
	c, cfg = certified(workerv1.Role_ROLE_DRAFTER, "sdpa")
	cfg.Drafter.Precision = "fp8"
	if _, err := worker.Check(c, cfg, "cpu"); err == nil || !strings.Contains(err.Error(), "precision: want fp8, got compute_dtype") {
		t.Errorf("asked for fp8, computed without: %v", err)
	}
	c, cfg = certified(workerv1.Role_ROLE_DRAFTER, "fp8")
	cfg.Drafter.Precision = ""
	if _, err := worker.Check(c, cfg, "cpu"); err == nil || !strings.Contains(err.Error(), "precision: want compute_dtype, got fp8") {
		t.Errorf("fp8 that nobody asked for: %v", err)
	}
}

// TestTolerances: how much a worker may allow itself, and a little more.
func TestTolerances(t *testing.T) {
	for _, row := range []struct {
		role    workerv1.Role
		dtype   string
		allowed float64
	}{
		{workerv1.Role_ROLE_TARGET, "float32", 1e-3},
		{workerv1.Role_ROLE_TARGET, "bfloat16", 0.15}, // a router's near tie
		{workerv1.Role_ROLE_DRAFTER, "float32", 1e-3},
		{workerv1.Role_ROLE_DRAFTER, "bfloat16", 0.05},
	} {
		c, cfg := certified(row.role, "sdpa")
		cfg.Target.Dtype, cfg.Training.ComputeDtype = row.dtype, row.dtype
		c.DenseTolerance = row.allowed
		if _, err := worker.Check(c, cfg, "cpu"); err != nil {
			t.Errorf("%+v: %v", row, err)
		}
		c.DenseTolerance = row.allowed * 1.01
		if _, err := worker.Check(c, cfg, "cpu"); err == nil || !strings.Contains(err.Error(), "dense_tolerance") {
			t.Errorf("%+v: a little more: %v", row, err)
		}
	}
}
