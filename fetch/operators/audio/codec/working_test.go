package codec

import "testing"

// TestWorking checks that the memory of another process for a file and its samples is
// counted.
func TestWorking(t *testing.T) {
	for _, name := range []string{"mono.mp3", "stereo.mp3", "mono.ogg", "mono.opus"} {
		file := load(t, name)
		info, err := Read(file)
		if err != nil {
			t.Fatal(err)
		}
		if least := int64(len(file) + 4*info.Frames*info.Channels); info.Frames == 0 || info.Working < least {
			t.Errorf("%s: %d bytes of %d and more", name, info.Working, least)
		}
	}
}
