package contact

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/edge/internal/site/contact/contactpb"
)

// Bounds of a peer's messages. A peer may be a stolen device: above a bound its connection ends.
const (
	// MaxPods is how many pods a report has; of more, the newest stay out.
	MaxPods = 512
	// maxFrame is more than a report of MaxPods with two addresses each takes.
	maxFrame     = 128 << 10
	maxText      = 64 // of a boot ID and of a uid
	maxAddresses = 2  // of a pod: one a family
	maxLAN       = 8  // of a device
	// beaconMark begins a beacon: its two highest bits are 0, those of a QUIC packet are not (RFC
	// 9000, 17, and RFC 9443).
	beaconMark = 0x07
	maxBeacon  = 300
)

var errBounds = errors.New("above the bounds")

// writeFrame writes a report with its length in front.
func writeFrame(w io.Writer, m *contactpb.Report) error {
	body, err := proto.Marshal(m)
	if err != nil {
		return fmt.Errorf("encoding a report: %w", err)
	}
	if len(body) > maxFrame {
		return fmt.Errorf("a report of %d bytes: %w", len(body), errBounds)
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

// readFrame reads a frame of writeFrame. One above the bounds is refused before memory
// is taken for it.
func readFrame(r io.Reader) (*contactpb.Report, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > maxFrame {
		return nil, fmt.Errorf("a report of %d bytes: %w", size, errBounds)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, err
	}
	m := &contactpb.Report{}
	if err := proto.Unmarshal(body, m); err != nil {
		return nil, fmt.Errorf("decoding a report: %w", err)
	}
	return m, nil
}

// readReport checks a report of a device whose pods have addresses in ranges. An address outside of
// these counts as dropped, and so does one more than a pod may have: a device has no authority over
// others' addresses.
func readReport(m *contactpb.Report, ranges []netip.Prefix) (w *Report, dropped int, err error) {
	if len(m.GetPods()) > MaxPods {
		return nil, 0, fmt.Errorf("a report of %d pods: %w", len(m.GetPods()), errBounds)
	}
	if id := m.GetBootId(); id == "" || len(id) > maxText {
		return nil, 0, fmt.Errorf("a boot ID of %d bytes: %w", len(id), errBounds)
	}
	w = &Report{Boot: m.GetBootId(), Sequence: m.GetSequence(), Pods: make(map[types.UID]Pod, len(m.GetPods()))}
	if err := readTunnel(m, w); err != nil {
		return nil, 0, err
	}
	for _, text := range m.GetLan()[:min(len(m.GetLan()), maxLAN)] {
		a, err := netip.ParseAddr(text)
		if a = a.Unmap(); err == nil && a.Zone() == "" && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() {
			w.LAN = append(w.LAN, a)
		}
	}
	for _, p := range m.GetPods() {
		if uid := p.GetUid(); uid == "" || len(uid) > maxText {
			return nil, 0, fmt.Errorf("a uid of %d bytes: %w", len(uid), errBounds)
		}
		one := Pod{UID: types.UID(p.GetUid()), Ready: p.GetReady(), Terminating: p.GetTerminating()}
		for _, text := range p.GetIps() {
			a, err := netip.ParseAddr(text)
			if err != nil || len(one.Addresses) == maxAddresses {
				dropped++
				continue
			}
			if !slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a.Unmap()) }) {
				dropped++ // it is not shown, unless the range turns out to be the device's
			}
			one.Addresses = append(one.Addresses, a.Unmap())
		}
		w.Pods[one.UID] = one
	}
	return w, dropped, nil
}

// readTunnel reads the key of a device's tunnel, which an older device does not have.
func readTunnel(m *contactpb.Report, w *Report) error {
	key, port := m.GetTunnelKey(), m.GetTunnelPort()
	if len(key) == 0 {
		return nil
	}
	if len(key) != len(w.Tunnel.Key) || port == 0 || port > 65535 {
		return fmt.Errorf("a tunnel's key of %d bytes, and port %d: %w", len(key), port, errBounds)
	}
	w.Tunnel = Tunnel{Key: [32]byte(key), Port: uint16(port)}
	return nil
}

// encodeReport is the report of this device. Pods are in their order of age: of more than MaxPods
// the newest stay out.
func encodeReport(boot string, sequence uint64, pods []Pod, tunnel Tunnel, lan []netip.Prefix) *contactpb.Report {
	m := &contactpb.Report{BootId: boot, Sequence: sequence, More: len(pods) > MaxPods}
	if tunnel != (Tunnel{}) {
		m.TunnelKey, m.TunnelPort = tunnel.Key[:], uint32(tunnel.Port)
	}
	for _, n := range lan[:min(len(lan), maxLAN)] {
		m.Lan = append(m.Lan, n.Addr().String())
	}
	for _, p := range pods[:min(len(pods), MaxPods)] {
		one := &contactpb.Pod{Uid: string(p.UID), Ready: p.Ready, Terminating: p.Terminating}
		for _, a := range p.Addresses[:min(len(p.Addresses), maxAddresses)] {
			one.Ips = append(one.Ips, a.String())
		}
		m.Pods = append(m.Pods, one)
	}
	return m
}

// encodeBeacon announces a device.
func encodeBeacon(node string, port int) ([]byte, error) {
	body, err := proto.Marshal(&contactpb.Beacon{Node: node, Port: uint32(port)})
	if err != nil {
		return nil, fmt.Errorf("encoding a beacon: %w", err)
	}
	return append([]byte{beaconMark}, body...), nil
}

// readBeacon reads a packet that any host may have sent.
func readBeacon(packet []byte) (node string, port uint16, err error) {
	if len(packet) == 0 || len(packet) > maxBeacon || packet[0] != beaconMark {
		return "", 0, errors.New("no beacon")
	}
	b := &contactpb.Beacon{}
	if err := proto.Unmarshal(packet[1:], b); err != nil {
		return "", 0, fmt.Errorf("decoding a beacon: %w", err)
	}
	if err := pki.ValidNodeName(types.NodeName(b.GetNode())); err != nil {
		return "", 0, err
	}
	if b.GetPort() == 0 || b.GetPort() > 65535 {
		return "", 0, errors.New("a beacon without a port")
	}
	return b.GetNode(), uint16(b.GetPort()), nil
}
