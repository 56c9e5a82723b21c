// Package calibrate finds out by reading what a store gives: at rising concurrency, until
// the rate grows no more. What is read, with how much in flight and for how long is bounded
// by whoever asks. What follows from the rates is package predict's business.
package calibrate
