package acd

import "testing"

// Frames come from whoever is on the LAN.
func FuzzTake(f *testing.F) {
	f.Add([]byte{})
	f.Add(append(make([]byte, 12), 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 2))
	vrrp := append(make([]byte, 12), 0x08, 0x00, 0x45, 0, 0, 32, 0, 0, 0, 0, 255, 112, 0, 0, 10, 0, 0, 1, 224, 0, 0, 18, 0x31, 7, 200, 1, 0, 100, 0, 0, 10, 0, 0, 9)
	f.Add(vrrp)
	f.Add(append(make([]byte, 12), 0x86, 0xdd, 0x60))
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < etherLen {
			return
		}
		answer(frame)
		if len(advertised(frame)) > 255 {
			t.Error("more addresses than an advertisement has room for")
		}
	})
}
