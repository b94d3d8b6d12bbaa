package sharing

import (
	"bytes"
	"testing"
)

// FuzzWire reads bytes of a member as a request and as an answer. Accepted ones are within the
// bounds, and are written as they were read.
func FuzzWire(f *testing.F) {
	f.Add(request{offset: 5, length: maxChunk}.append(nil), uint32(maxChunk), int64(10))
	f.Add(answer{code: hasIt, size: 10, length: 5}.append(nil), uint32(5), int64(10))
	f.Add(answer{code: busy}.append(nil), uint32(5), int64(10))
	f.Add([]byte{0, 255, 255}, uint32(0), int64(0))
	f.Fuzz(func(t *testing.T, b []byte, asked uint32, size int64) {
		if r, err := readRequest(bytes.NewReader(b)); err == nil {
			if r.length > maxChunk || !bytes.Equal(r.append(nil), b[:requestSize]) {
				t.Errorf("%+v of %x", r, b)
			}
		}
		to := request{length: asked, offset: uint64(max(0, size/2))}
		if a, err := readAnswer(bytes.NewReader(b), to, size); err == nil {
			if a.length > asked || a.length > maxChunk || a.code != hasIt && a.length > 0 || a.length > 0 && int64(to.offset)+int64(a.length) > size || !bytes.Equal(a.append(nil), b[:answerSize]) {
				t.Errorf("%+v of %x", a, b)
			}
		}
	})
}
