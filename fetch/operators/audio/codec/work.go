package codec

import (
	"bowstring/fetch/operators/audio/vorbis"
	"bowstring/fetch/operators/program"
)

// Steps of one sample of one channel, about twice as many as were measured of usual files. Package vorbis has its own.
const (
	ofWAV    = 4
	ofFLAC   = 24
	ofMP3    = 100
	ofNative = 60
)

// Work bounds the steps that decoding takes of n samples of each channel from sample offset on. Where a sample is found
// by a search, decoding begins a little before it; otherwise it begins with the file.
func (i Info) Work(offset, n int) program.Amount {
	frames, before := program.Count(int64(n)), program.Count(int64(offset))
	channels := int64(max(i.Channels, 1))
	switch i.Format {
	case WAV:
		return frames.Times(channels * ofWAV)
	case FLAC:
		return frames.Plus(program.Count(3 * int64(i.block))).Times(channels * ofFLAC)
	case MP3: // the library makes whole frames of two channels, whatever the file has
		return frames.Plus(before).Plus(program.Count(int64(i.block) + 2*1152)).Times(2 * ofMP3)
	case Vorbis:
		around := program.Count(4 * vorbis.LongestBlock)
		return frames.Plus(around).Times(channels * max(i.steps, ofNative)).Plus(program.Count(vorbis.SetupSteps))
	default:
		return frames.Plus(before).Times(channels * ofNative)
	}
}
