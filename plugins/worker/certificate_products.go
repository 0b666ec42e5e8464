package worker

import (
	"slices"
	"strings"

	workerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/worker/v1"
)

// Precisions of the products of a drafter's layers and head.
const (
	precisionCompute = "compute_dtype"
	precisionFP8     = "fp8"
)

// What a drafter multiplies in one pass over a bucket: the linear maps of a
// layer, two of them for the context as well, forward and for both gradients.
const (
	callsOfLayer    = 7 + 2
	productsOfCall  = 3
	productsOfChunk = 2 // of the head: logits, and the gradient of what they are made from
)

// fp8Marks are in the names of what multiplies in fp8: cuBLAS's kernels have the
// types of their operands there, and a CPU's function its name.
var fp8Marks = []string{"_qq", "e4m3", "e5m2", "_scaled_mm"}

// checkProducts: the products of layers and head were computed as asked, each of
// them, and no other way.
func checkProducts(c *workerv1.Certificate, cfg *workerv1.Configuration, _ string) error {
	want := precisionCompute
	if cfg.GetRole() == workerv1.Role_ROLE_DRAFTER && cfg.GetDrafter().GetPrecision() == precisionFP8 {
		want = precisionFP8
	}
	if c.Precision != want {
		return refuse("precision", want, clean(c.Precision, 80))
	}
	runs := uint64(len(c.Buckets)) * passes
	named := slices.ContainsFunc(c.ProductKernels, inFP8)
	if want == precisionCompute {
		switch {
		case c.GetLinearProducts() != 0:
			return refuse("linear_products", 0, c.GetLinearProducts())
		case c.GetHeadProducts() != 0:
			return refuse("head_products", 0, c.GetHeadProducts())
		case named:
			return refuse("product_kernels", "none in fp8", clean(strings.Join(c.ProductKernels, " "), 400))
		}
		return nil
	}
	linears := uint64(cfg.GetDrafter().GetLayers()) * callsOfLayer * productsOfCall * runs
	switch {
	case c.GetLinearProducts() != linears:
		return refuse("linear_products", linears, c.GetLinearProducts())
	case c.GetHeadProducts() < productsOfChunk*runs || c.GetHeadProducts()%productsOfChunk != 0:
		return refuse("head_products", "two a chunk, and a chunk or more a bucket and pass", c.GetHeadProducts())
	case !named:
		return refuse("product_kernels", "some in fp8", clean(strings.Join(c.ProductKernels, " "), 400))
	}
	return nil
}

// inFP8 tells whether a kernel's name says that it multiplies in fp8.
func inFP8(name string) bool {
	return slices.ContainsFunc(fp8Marks, func(mark string) bool { return strings.Contains(name, mark) })
}
