//go:build race

package programtest

// raceFactor is how much more is allocated under the race detector: what a bytes.Buffer grows by is made twice.
const raceFactor = 2
