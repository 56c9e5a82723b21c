//go:build !race

package programtest

const raceFactor = 1
