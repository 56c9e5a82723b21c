package codec

import "bytes"

// otherFormats are files of images that are not read, by how they begin.
var otherFormats = []struct {
	at    int
	begin string
	name  string
}{
	{4, "ftypavif", "AVIF"},
	{4, "ftypavis", "AVIF"},
	{4, "ftyphei", "HEIF"},
	{4, "ftyphev", "HEIF"},
	{4, "ftypmif1", "HEIF or AVIF"},
	{4, "ftypcrx ", "CR3"},
	{4, "jP  \r\n\x87\n", "JPEG 2000"},
	{0, "\xff\x4f\xff\x51", "JPEG 2000"},
	{4, "JXL \r\n\x87\n", "JPEG XL"},
	{0, "\xff\x0a", "JPEG XL"},
	{0, "8BPS", "PSD"},
	{0, "\x76\x2f\x31\x01", "OpenEXR"},
	{0, "#?RADIANCE", "Radiance HDR"},
	{0, "SIMPLE  =", "FITS"},
	{128, "DICM", "DICOM"},
	{0, "\x00\x00\x01\x00", "ICO"},
	{0, "\x00\x00\x02\x00", "CUR"},
	{0, "icns", "ICNS"},
	{0, "DDS ", "DDS"},
	{0, "qoif", "QOI"},
	{0, "%PDF", "PDF"},
	{0, "%!PS", "PostScript"},
	{0, "<svg", "SVG"},
	{0, "\x0a\x05\x01\x08", "PCX"},
	{0, "\x01\xda", "SGI"},
	{0, "\x59\xa6\x6a\x95", "Sun raster"},
	{0, "II\xbc", "JPEG XR"},
	{0, "IIRO", "ORF"},
	{0, "IIU\x00", "RW2"},
	{0, "AT&TFORM", "DjVu"},
	{0, "P1", "PBM"},
	{0, "P2", "PGM"},
	{0, "P3", "PPM"},
	{0, "P4", "PBM"},
	{0, "P5", "PGM"},
	{0, "P6", "PPM"},
	{0, "P7\n", "PAM"},
	{0, "Pf\n", "PFM"},
	{0, "PF\n", "PFM"},
}

// otherFormat names the format of a file that is not read; "" where it is none that is known.
func otherFormat(cell []byte) string {
	for _, f := range otherFormats {
		rest := cell[min(f.at, len(cell)):]
		if !bytes.HasPrefix(rest, []byte(f.begin)) {
			continue
		}
		if len(f.begin) == 2 && f.begin[0] == 'P' && (len(rest) < 3 || !bytes.ContainsAny(rest[2:3], " \t\r\n#")) {
			continue // a text
		}
		return f.name
	}
	return ""
}
