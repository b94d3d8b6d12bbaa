package sockdiag

import "net"

// Answer is a connection to a server of this host that closes it as soon as it has answered, as the
// kubelet does after an exec. Where the answer is read slowly, megabytes of it wait in the kernel
// by then. A byte of the client that arrived at the server's socket meanwhile (kubectl sends a ping
// every 5 s) would reset the connection, and the kernel would drop them. Such bytes, which nobody
// would read, are discarded.
//
// It is used by one reader and one writer at a time.
type Answer struct {
	net.Conn
	socket *net.TCPConn
	closed bool // by the server; owned by the writer
}

// KeepAnswer returns an Answer of conn, or of the TCP connection below its TLS; conn itself where
// there is none.
func KeepAnswer(conn net.Conn) net.Conn {
	below := conn
	if c, ok := conn.(interface{ NetConn() net.Conn }); ok { // a tls.Conn
		below = c.NetConn()
	}
	if socket, ok := below.(*net.TCPConn); ok {
		return &Answer{Conn: conn, socket: socket}
	}
	return conn
}

// Write implements net.Conn.
func (a *Answer) Write(b []byte) (int, error) {
	if a.closed || a.resets() {
		return len(b), nil
	}
	return a.Conn.Write(b)
}

// resets reports whether a write would reset the connection before its answer has been read. Where
// the kernel does not tell, the write goes ahead.
func (a *Answer) resets() bool {
	if n, err := Unread(a.socket); err != nil || n == 0 {
		return false
	}
	closed, err := Orphaned(a.socket)
	a.closed = err == nil && closed
	return a.closed
}

// CloseWrite ends one direction, where the connection can.
func (a *Answer) CloseWrite() error {
	if half, ok := a.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return a.Close()
}
