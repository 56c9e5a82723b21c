package spans

// Most is the most bytes that one span reads, given the memory of all spans.
func Most(memory int64) int64 { return min(MaxSpan, memory/memoryShare) }

// Lasts is for how many epochs a chunk is read at once by the rule of docs/spans.md, if the spill holds a share of
// the data that is less than 1.
func Lasts(held float64) float64 {
	if held <= 0.5 {
		return 2 * max(held, 0)
	}
	return 1 / (2 * (1 - held))
}

// Requests is how many requests an epoch takes by the rule of docs/spans.md: a chunk holds perChunk of the samples,
// and the spill holds a share of the data. In the first epoch each chunk is read once more.
func Requests(samples, perChunk, held float64, first bool) (requests float64) {
	if first {
		requests = samples / max(perChunk, 1)
	}
	if held < 1 {
		requests += samples / (1 + max(perChunk-1, 0)*Lasts(held))
	}
	return requests
}
