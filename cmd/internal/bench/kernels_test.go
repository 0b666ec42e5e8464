package bench

import "testing"

func TestGroupOf(t *testing.T) {
	for name, want := range map[string]string{
		"nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NTT":                             matmul,
		"void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>":            matmul,
		"sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64":           matmul,
		"triton_tem_fused_mm_3":                                                 matmul,
		"aten::addmm":                                                           matmul,
		"void cublasLt::splitKreduce_kernel<32, 16>":                            matmul,
		"triton_tem_fused_flex_attention_0":                                     attention,
		"triton_tem_fused_flex_attention_backward_1":                            attention,
		"triton_tem_fused_flex_attention_mm_1":                                  attention, // what is fused into attention is attention
		"fmha_cutlassF_bf16_aligned_64x64_rf_sm80":                              attention, // not a product, though cutlass made it
		"aten::_scaled_dot_product_flash_attention_for_cpu":                     attention,
		"void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float>": loss,
		"triton_red_fused__log_softmax_copy_0":                                  loss, // before the copy in it
		"_HeadLoss":                                                             loss,
		"Memcpy DtoD (Device -> Device)":                                        copies,
		"Memset (Device)":                                                       copies,
		"void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(...)>":      copies,
		"void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::OpaqueType<2u>, 2>": copies,
		"aten::_to_copy": copies,
		"void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>": others,
		"triton_per_fused_add_mean_mul_pow_rsqrt_2":                                        others,
		"": others,
	} {
		if got := groupOf(name); got != want {
			t.Errorf("%q: got %s, want %s", name, got, want)
		}
	}
}

func TestGrouped(t *testing.T) {
	got := grouped([]Kernel{{"nvjet_a", 2, 3}, {"nvjet_b", 1, 1}, {"Memcpy", 0.5, 2}},
		[]Kernel{{"nvjet_a", 4, 1}, {"Memcpy", 0.25, 1}}) // of an update everything is the optimiser's
	for group, want := range map[string]float64{matmul: 3, copies: 0.5, optimiser: 4.25, attention: 0} {
		if got[group] != want {
			t.Errorf("%s: got %v, want %v", group, got[group], want)
		}
	}
}

func TestGaps(t *testing.T) {
	for name, c := range map[string]struct {
		spans       []Span
		idle, whole float64
	}{
		"none":                        {nil, 0, 0},
		"one":                         {[]Span{{5, 9}}, 0, 4},
		"two apart":                   {[]Span{{0, 4}, {6, 10}}, 2, 10},
		"in any order":                {[]Span{{6, 10}, {0, 4}}, 2, 10},
		"two streams":                 {[]Span{{0, 4}, {3, 8}, {8, 10}}, 0, 10},
		"one within another":          {[]Span{{0, 10}, {2, 3}, {12, 13}}, 2, 13},
		"the longest is not the last": {[]Span{{0, 2}, {4, 20}, {5, 6}}, 2, 20},
	} {
		before := append([]Span(nil), c.spans...)
		if idle, whole := gaps(c.spans); idle != c.idle || whole != c.whole {
			t.Errorf("%s: got %v of %v, want %v of %v", name, idle, whole, c.idle, c.whole)
		}
		for i := range before {
			if before[i] != c.spans[i] {
				t.Errorf("%s: the spans were sorted in place", name)
			}
		}
	}
}
