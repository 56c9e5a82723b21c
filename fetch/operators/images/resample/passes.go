package resample

// rowGo weighs the pixels of a row.
func (w *weights) rowGo(in, out []byte, channels int) {
	switch channels {
	case 1:
		for x, first := range w.first {
			n := int(w.count[x])
			values, pixels := w.values[x*w.size:][:n], in[first:][:n]
			sum := int32(half)
			for i, v := range values {
				sum += int32(pixels[i]) * v
			}
			out[x] = clip(sum)
		}
	case 3:
		for x, first := range w.first {
			n := int(w.count[x])
			values, pixels := w.values[x*w.size:][:n], in[3*int(first):][:3*n]
			a, b, c := int32(half), int32(half), int32(half)
			for len(values) > 0 && len(pixels) >= 3 {
				v := values[0]
				a += int32(pixels[0]) * v
				b += int32(pixels[1]) * v
				c += int32(pixels[2]) * v
				values, pixels = values[1:], pixels[3:]
			}
			to := out[3*x : 3*x+3]
			to[0], to[1], to[2] = clip(a), clip(b), clip(c)
		}
	default:
		for x, first := range w.first {
			n := int(w.count[x])
			values, pixels := w.values[x*w.size:][:n], in[channels*int(first):]
			for c := range channels {
				sum := int32(half)
				for i, v := range values {
					sum += int32(pixels[i*channels+c]) * v
				}
				out[x*channels+c] = clip(sum)
			}
		}
	}
}

// columnGo weighs rows of width bytes, one after another in in.
func columnGo(in []byte, width int, values []int32, out []byte, sums []int32) {
	sums, out = sums[:width], out[:width]
	for i := range sums {
		sums[i] = half
	}
	for k, v := range values {
		row := in[k*width:][:width]
		for i := range sums {
			sums[i] += int32(row[i]) * v
		}
	}
	for i, v := range sums {
		out[i] = clip(v)
	}
}
