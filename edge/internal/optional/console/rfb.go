package console

import (
	"encoding/binary"
	"io"
	"strings"
)

// refuseRFB fails a handshake with a reason, which clients show (RFC 6143, section 7.1.2; for
// versions before 3.7 its appendix A).
func refuseRFB(client io.ReadWriter, why string) error {
	const version = "RFB 003.008\n"
	if _, err := io.WriteString(client, version); err != nil {
		return err
	}
	its := make([]byte, len(version))
	if _, err := io.ReadFull(client, its); err != nil {
		return err
	}
	answer := []byte{0} // no security types
	if strings.HasPrefix(string(its), "RFB 003.00") && its[10] < '7' {
		answer = make([]byte, 4) // the security type "invalid"
	}
	answer = binary.BigEndian.AppendUint32(answer, uint32(len(why)))
	_, err := client.Write(append(answer, why...))
	return err
}
