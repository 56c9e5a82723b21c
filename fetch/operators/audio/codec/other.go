package codec

// otherFormats are files of sound that are not read, by how they begin.
var otherFormats = []struct {
	at    int
	begin string
	name  string
}{
	{0, "RIFX", "RIFX, a WAV of big-endian numbers"},
	{8, "AIFF", "AIFF"},
	{8, "AIFC", "AIFF-C"},
	{0, ".snd", "AU"},
	{0, "caff", "CAF"},
	{4, "ftyp", "MPEG-4 (M4A, MP4)"},
	{0, "\x1aE\xdf\xa3", "Matroska or WebM"},
	{0, "\x30\x26\xb2\x75\x8e\x66\xcf\x11", "ASF (WMA)"},
	{0, "#!AMR", "AMR"},
	{0, "NIST_1A", "NIST SPHERE"},
	{0, "wvpk", "WavPack"},
	{0, "MAC ", "Monkey's Audio"},
	{0, "DSD ", "DSF"},
	{0, "FRM8", "DSDIFF"},
	{0, "TTA1", "TTA"},
	{0, "MThd", "MIDI"},
	{0, "ADIF", "AAC"},
	{0, "\xff\xf1", "AAC (ADTS)"},
	{0, "\xff\xf9", "AAC (ADTS)"},
}

// otherFormat names the format of a file of sound that is not read; "" where it is none that is known.
func otherFormat(file []byte) string {
	for _, f := range otherFormats {
		if has(file, f.at, f.begin) {
			return f.name
		}
	}
	return ""
}
