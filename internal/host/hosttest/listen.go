package hosttest

// listenScript is the suite's listen for drivers that run real programs, in Python:
// listen PORT MODE [ADDRESS] prints "listening" and serves each connection by MODE.
// echo sends back what comes, greet sends "hello", ends its side and prints how many
// bytes came and how they ended, flood sends without end, deaf reads nothing, cut
// sends "part", waits for a byte and resets.
const listenScript = `
import socket, struct, sys, threading, time
port, mode = int(sys.argv[1]), sys.argv[2]
address = sys.argv[3] if len(sys.argv) > 3 else '127.0.0.1'
s = socket.socket(socket.AF_INET6 if ':' in address else socket.AF_INET)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if ':' in address:
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
s.bind((address, port))
s.listen(128)
print('listening', flush=True)

def serve(c):
    try:
        if mode == 'echo':
            while b := c.recv(65536):
                c.sendall(b)
        elif mode == 'greet':
            c.sendall(b'hello')
            c.shutdown(socket.SHUT_WR)
            n = 0
            try:
                while b := c.recv(65536):
                    n += len(b)
                print('got', n, flush=True)
            except ConnectionResetError:
                print('reset after', n, flush=True)
        elif mode == 'flood':
            while True:
                c.sendall(bytes(32768))
        elif mode == 'deaf':
            time.sleep(1000)
        elif mode == 'cut':
            c.sendall(b'part')
            c.recv(1)
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    except OSError:
        pass
    c.close()

while True:
    threading.Thread(target=serve, args=s.accept()[:1], daemon=True).start()
`
