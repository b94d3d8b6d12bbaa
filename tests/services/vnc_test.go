package services_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

// The screen of the played virtual machine: so many pixels of one byte, each of its own colour.
const (
	screenWidth, screenHeight = 16, 8
	rfbVersion                = "RFB 003.008\n"
)

func screen() []byte {
	pixels := make([]byte, screenWidth*screenHeight)
	for i := range pixels {
		pixels[i] = byte(7 * i)
	}
	return pixels
}

// serveRFB is a server of RFC 6143 without a password: the handshake, and the screen whenever it is
// asked for. Keys that are pressed are sent to keys.
func serveRFB(conn io.ReadWriter, name string, keys chan<- uint32) error {
	read := func(n int) ([]byte, error) {
		b := make([]byte, n)
		_, err := io.ReadFull(conn, b)
		return b, err
	}
	if _, err := io.WriteString(conn, rfbVersion); err != nil {
		return err
	}
	if its, err := read(len(rfbVersion)); err != nil || string(its) != rfbVersion {
		return fmt.Errorf("the client's version is %q: %w", its, err)
	}
	if _, err := conn.Write([]byte{1, 1}); err != nil { // 7.1.2: one security type, which is None
		return err
	}
	if chosen, err := read(1); err != nil || chosen[0] != 1 {
		return fmt.Errorf("the client chose security type %v: %w", chosen, err)
	}
	if _, err := conn.Write(make([]byte, 4)); err != nil { // 7.1.3: OK
		return err
	}
	if _, err := read(1); err != nil { // 7.3.1: ClientInit
		return err
	}
	serverInit := binary.BigEndian.AppendUint16(nil, screenWidth) // 7.3.2
	serverInit = binary.BigEndian.AppendUint16(serverInit, screenHeight)
	serverInit = append(serverInit, 8, 8, 0, 1, 0, 7, 0, 7, 0, 3, 0, 3, 6, 0, 0, 0)
	serverInit = binary.BigEndian.AppendUint32(serverInit, uint32(len(name)))
	if _, err := conn.Write(append(serverInit, name...)); err != nil {
		return err
	}
	for {
		kind, err := read(1)
		if err != nil {
			return err
		}
		switch kind[0] {
		case 3: // 7.5.3: FramebufferUpdateRequest
			if _, err := read(9); err != nil {
				return err
			}
			update := []byte{0, 0, 0, 1, 0, 0, 0, 0} // 7.6.1: one rectangle, at the corner
			update = binary.BigEndian.AppendUint16(update, screenWidth)
			update = binary.BigEndian.AppendUint16(update, screenHeight)
			update = append(update, 0, 0, 0, 0) // 7.7.1: raw
			if _, err := conn.Write(append(update, screen()...)); err != nil {
				return err
			}
		case 4: // 7.5.4: KeyEvent
			event, err := read(7)
			if err != nil {
				return err
			}
			keys <- binary.BigEndian.Uint32(event[3:])
		default:
			return fmt.Errorf("a message of kind %d", kind[0])
		}
	}
}

// viewer is a client of RFC 6143.
type viewer struct {
	net.Conn
	name string // of the desktop
}

// view does the handshake. A server that refuses is an error with its reason.
func view(conn net.Conn) (*viewer, error) {
	v := &viewer{Conn: conn}
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return nil, err
	}
	if its, err := v.take(len(rfbVersion)); err != nil || string(its) != rfbVersion {
		return nil, fmt.Errorf("the server's version is %q: %w", its, err)
	}
	if _, err := io.WriteString(conn, rfbVersion); err != nil {
		return nil, err
	}
	n, err := v.take(1)
	if err != nil {
		return nil, err
	}
	if n[0] == 0 {
		reason, err := v.text()
		return nil, fmt.Errorf("refused: %s: %w", reason, err)
	}
	if types, err := v.take(int(n[0])); err != nil || !bytes.Contains(types, []byte{1}) {
		return nil, fmt.Errorf("security types %v: %w", types, err)
	}
	if _, err := conn.Write([]byte{1}); err != nil {
		return nil, err
	}
	if result, err := v.take(4); err != nil || !bytes.Equal(result, make([]byte, 4)) {
		return nil, fmt.Errorf("the security result is %v: %w", result, err)
	}
	if _, err := conn.Write([]byte{1}); err != nil {
		return nil, err
	}
	if _, err := v.take(2 + 2 + 16); err != nil {
		return nil, err
	}
	v.name, err = v.text()
	return v, err
}

func (v *viewer) take(n int) ([]byte, error) {
	b := make([]byte, n)
	_, err := io.ReadFull(v, b)
	return b, err
}

func (v *viewer) text() (string, error) {
	n, err := v.take(4)
	if err != nil {
		return "", err
	}
	b, err := v.take(int(binary.BigEndian.Uint32(n)))
	return string(b), err
}

// look asks for the screen and returns its pixels.
func (v *viewer) look() ([]byte, error) {
	if _, err := v.Write([]byte{3, 0, 0, 0, 0, 0, 0, screenWidth, 0, screenHeight}); err != nil {
		return nil, err
	}
	if head, err := v.take(4 + 12); err != nil || head[0] != 0 {
		return nil, fmt.Errorf("the update begins with %v: %w", head, err)
	}
	return v.take(screenWidth * screenHeight)
}

// press presses a key.
func (v *viewer) press(key uint32) error {
	_, err := v.Write(binary.BigEndian.AppendUint32([]byte{4, 1, 0, 0}, key))
	return err
}
