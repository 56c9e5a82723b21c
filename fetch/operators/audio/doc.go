// Package audio compiles pipelines of sound: files are decoded, resampled, cut, turned
// into log-mel spectrograms and augmented, until a sample is what a model takes.
//
// Operators have the names and parameters of torchaudio.transforms where it has them,
// and compute what it computes: see each operator's type. Computations are in single
// precision, whatever the result's type, and equal bit for bit on every machine.
//
// Package codec reads files, package vorbis those of Ogg Vorbis, package sndfile those that take a library in C, and dsp
// computes; this one knows names, shapes and order. It does no I/O but by these, and starts no goroutine.
package audio

import "bowstring/fetch/operators/audio/codec"

// ContractVersion changes when equal pipelines of equal cells may give other bytes with the same engine.
const ContractVersion = "audio-3"

// Contract names what the bytes of a result depend on besides the canonical list and the
// cell: the version, and what decodes MP3 and Ogg here, as decoders of these differ by
// rounding. A list does not say which files it will meet, so all lists have it. It is a program.ErrUnavailable where
// that cannot be asked just now; once it is known it stays what it is.
func Contract() (string, error) {
	lossy, err := codec.Lossy()
	if err != nil {
		return "", err
	}
	return ContractVersion + "/" + lossy, nil
}

// Engine names what decodes files in this process: "go", or "go, libsndfile 1.2.2"
// where that library was named and found. WAV and FLAC have equal samples with each; those of MP3
// and Ogg Vorbis differ by rounding (some 100 dB below the signal and less), and Opus needs the library.
func Engine() string { return codec.Engine() }
