package source

import (
	"bufio"
	"context"
	"fmt"
	"strings"

	"bowstring/schema"
)

// transcriptSuffix ends the names of LibriSpeech's transcripts.
const transcriptSuffix = ".trans.txt"

// openAudioFolder opens a folder of sound, which is laid out as one of images is.
func openAudioFolder(ctx context.Context, root string, opts Options) (Source, error) {
	return openFolder(ctx, root, opts, &imageFolder{about: about{format: "audiofolder"}, media: schema.MediaAudio,
		isMedia: isAudioName})
}

func (l *layout) looksAudioFolder() bool {
	other := func(name string) bool {
		return isImageName(name) || isTarName(name) || extension(name) == "parquet"
	}
	return l.dir && l.any(isAudioName) && !l.any(other) && !l.looksCommonVoice()
}

// kind is what the files are, in words.
func (s *imageFolder) kind() string {
	if s.media == schema.MediaAudio {
		return "sound"
	}
	return "images"
}

func (s *imageFolder) extensions() []string {
	if s.media == schema.MediaAudio {
		return audioExtensions
	}
	return imageExtensions
}

func (s *imageFolder) isMetadata(name string) bool {
	return isMetadata(name) || s.media == schema.MediaAudio && strings.HasSuffix(name, transcriptSuffix)
}

// readTranscripts reads lines of an utterance's name and what is said in it. The
// utterance is a FLAC beside the file.
func (t *looseTable) readTranscripts(file string, r *bufio.Reader) error {
	name, transcript := t.column("file_name"), t.column("transcript")
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		id, said, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		if id == "" {
			continue
		}
		t.lines = append(t.lines, place{file, n})
		if err := t.set(name, textOf(id+".flac")); err != nil {
			return err
		}
		if err := t.set(transcript, textOf(strings.TrimSpace(said))); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%w: %w", schema.ErrInvalid, err)
	}
	return nil
}
