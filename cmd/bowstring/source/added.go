package source

import (
	"slices"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch/operators/audio/codec"
)

// addedColumns are what is added to the columns of a source.
var addedColumns = []string{"width", "height", "format", "orientation", "duration", "sampling_rate", "channels"}

// add adds a column, unless it is left out, or it is among the source's own.
func (r *Reader) add(own []arrow.Field, name string, dt arrow.DataType, value func(*slot) any) {
	out := slices.ContainsFunc(r.opts.LeaveOut, func(pattern string) bool { return matches(pattern, name) })
	if !out && !slices.ContainsFunc(own, func(f arrow.Field) bool { return f.Name == name }) {
		r.meta = append(r.meta, arrow.Field{Name: name, Type: dt, Nullable: true})
		r.added = append(r.added, value)
	}
}

func (r *Reader) addImageColumns(own []arrow.Field) {
	add := func(name string, dt arrow.DataType, value func(imageInfo) any) {
		r.add(own, name, dt, func(s *slot) any {
			if s.info.Format == "" { // a null image, or one that nobody looked at
				return nil
			}
			return value(s.info)
		})
	}
	add("width", arrow.PrimitiveTypes.Int32, func(i imageInfo) any { return i.Width })
	add("height", arrow.PrimitiveTypes.Int32, func(i imageInfo) any { return i.Height })
	add("format", arrow.BinaryTypes.String, func(i imageInfo) any { return i.Format })
	add("orientation", arrow.PrimitiveTypes.Int32, func(i imageInfo) any { return i.Orientation })
}

// addSoundColumns adds what headers of sound say. They are null where a header is none
// that is known: such files are imported as they are.
func (r *Reader) addSoundColumns(own []arrow.Field) {
	add := func(name string, dt arrow.DataType, value func(codec.Info) any) {
		r.add(own, name, dt, func(s *slot) any {
			if s.sound.Rate == 0 {
				return nil
			}
			return value(s.sound)
		})
	}
	add("duration", arrow.PrimitiveTypes.Float64, func(i codec.Info) any { return float64(i.Frames) / float64(i.Rate) })
	add("sampling_rate", arrow.PrimitiveTypes.Int32, func(i codec.Info) any { return int32(i.Rate) })
	add("channels", arrow.PrimitiveTypes.Int32, func(i codec.Info) any { return int32(i.Channels) })
}
