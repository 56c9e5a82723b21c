package spans

// Most is how many bytes a span brings at most where all spans have so much memory.
func Most(memory int64) int64 { return min(MaxSpan, memory/memoryShare) }

// Requests is how many requests an epoch takes by the rule of docs/spans.md: of so many samples, of which a chunk has
// perChunk, while the spill holds a share of all. The first epoch is one of a share of 1.
func Requests(samples, perChunk, held float64) float64 {
	return samples / (1 + max(perChunk-1, 0)*min(max(held, 0), 1))
}
