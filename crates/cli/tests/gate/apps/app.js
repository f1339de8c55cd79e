// The application of the peers' tests in Node; app.go says what it does.
'use strict';
const crypto = require('crypto');
const fs = require('fs');
const http = require('http');

const [, , log, socket] = process.argv;

function answer(request, response) {
  const pieces = [];
  request.on('data', (piece) => pieces.push(piece));
  // Comes only after a body that was whole.
  request.on('end', () => {
    const body = Buffer.concat(pieces);
    const read = `${request.method} ${request.url} ${body.length}`;
    fs.appendFileSync(log, Buffer.from(`${read}\n`, 'latin1'));
    const trailers = Object.entries(request.trailers).map(([name, value]) => `${name}=${value}`);
    response.setHeader('X-Read', read);
    response.setHeader('X-Trailers', trailers.sort().join(';'));
    response.setHeader('Content-Type', 'application/octet-stream');
    response.end(body);
  });
}

function upgrade(request, socket) {
  const read = `${request.method} ${request.url} 0`;
  fs.appendFileSync(log, Buffer.from(`${read}\n`, 'latin1'));
  socket.on('error', () => {});
  const key = request.headers['sec-websocket-key'];
  if (key === undefined) {
    socket.end(Buffer.from(`HTTP/1.1 200 OK\r\nX-Read: ${read}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n`, 'latin1'));
    return;
  }
  const accept = crypto.createHash('sha1').update(`${key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest('base64');
  socket.write(
    'HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n' +
      `Sec-WebSocket-Accept: ${accept}\r\n\r\n`,
  );
  socket.pipe(socket);
}

const options = { keepAliveTimeout: 3600000, maxHeaderSize: 1 << 20 };
const servers = [http.createServer(options, answer), http.createServer(options, answer)];
for (const server of servers) server.on('upgrade', upgrade);
servers[0].listen(socket, () => {
  servers[1].listen(0, '127.0.0.1', () => console.log(`listening on 127.0.0.1:${servers[1].address().port}`));
});
