// Package dsp computes what operators of sound compute: Fourier transforms, mel bands,
// resampling, decibels.
//
// Its results are equal bit for bit on every processor. Products are rounded before
// they are added (an explicit conversion keeps compilers from fusing the two), sums
// have a fixed order, and functions that Go's math package implements in assembly on
// some processors have versions of their own here.
//
// The package knows neither files nor requests, and starts no goroutine.
package dsp
