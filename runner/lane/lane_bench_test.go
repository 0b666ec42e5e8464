package lane

import "testing"

func BenchmarkEncodePull(b *testing.B) {
	o := testOrders()[3]
	b.ReportAllocs()
	for b.Loop() {
		if _, err := EncodeOrder(1, o); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeProduced(b *testing.B) {
	frame, err := EncodeReply(1, testReplies()[1])
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := DecodeReply(frame); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkScanProduced(b *testing.B) {
	frame, err := EncodeReply(1, testReplies()[1])
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := Scan(frame); err != nil {
			b.Fatal(err)
		}
	}
}
